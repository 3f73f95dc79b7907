"""What a process of a check tells the check while it runs: one JSON object a line, through a pipe.

A pipe, as it needs no room on a disk and no name that a test could write to. Whatever else a test writes into it is told
from events by its form, and a process whose pipe is gone ends itself: a test then has failed, never a result got lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from unigrad_conformance.observations import Observation, from_line, to_line
from unigrad_conformance.results import OUTCOMES, Result, Session

__all__ = ["CANNOT_TELL", "EventLog", "Journal"]

CANNOT_TELL = 70
"""Exit code of a process that can tell its results to nobody."""

_LONGEST = 2**28  # bytes of a line


class EventLog:
    """The writing side, in the process that runs tests.

    Parameters
    ----------
    pipe
        File descriptor to write to; None to tell nothing.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe
        self._process = os.getpid()
        self._identity = None if pipe is None else _identity(pipe)

    def write(self, event: str, /, **data: Any) -> None:
        """Tell one event; it is in the pipe when this returns."""
        if self._pipe is None:
            return
        if os.getpid() != self._process:
            os._exit(0)  # a test forked, and its child went on as if it were this process
        # The line break before it ends what a test may have written.
        line = f"\n{json.dumps({'event': event, **data})}\n".encode()
        try:
            if _identity(self._pipe) != self._identity:
                raise OSError("something closed the pipe of results")
            while line:
                line = line[os.write(self._pipe, line) :]
        except OSError as error:
            os.write(2, f"cannot tell the results: {error}\n".encode())
            os._exit(CANNOT_TELL)

    def encode(self, observations: Iterable[Observation]) -> list[dict[str, Any]]:
        """Return observations as JSON data; nothing if nothing is told."""
        return [] if self._pipe is None else [to_line(observation) for observation in observations]


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


_DESCRIBED = ("python", "platform", "framework", "framework_version", "unigrad_version", "guarantees")
_TAKEN = ("outcome", "reason", "details", "url", "duration_s")


class Journal:
    """The reading side: what the processes of one backend have told, one after the other.

    Parameters
    ----------
    name
        The backend.

    Attributes
    ----------
    planned
        Whether the first process told which tests it will run.
    running, last
        The test that the present process is in, and the last that it finished; empty for none.
    exit
        The exit code with which the present process told that it will end; None before.
    """

    def __init__(self, name: str) -> None:
        self._session = Session(name)
        self._plan: dict[str, Result] = {}
        self._results: dict[str, Result] = {}
        self._bad: dict[str, None] = {}
        self._numbers: dict[int, str] = {}
        self._rest = bytearray()
        self.planned = False
        self.running = self.last = ""
        self.exit: int | None = None

    def begin(self) -> None:
        """Expect a new process."""
        self._rest.clear()
        self._numbers.clear()
        self.running = self.last = ""
        self.exit = None

    def feed(self, data: bytes) -> None:
        """Take what came through the pipe; what is no event is passed over."""
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._rest += data
            if len(self._rest) > _LONGEST:
                self._rest.clear()
            return
        lines = bytes(self._rest) + data[:cut]
        self._rest = bytearray(data[cut:])
        for line in lines.split(b"\n"):
            try:
                if line:
                    self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "start" and event["id"] in self._plan:
            self.charge("the test ended, but what it told cannot be read")
            self.running = self._numbers[event["number"]] = event["id"]
        elif kind == "result" and event["id"] == self.running:
            self._set(_filled(self._plan[self.running], event))
            self.running, self.last = "", self.running
        elif kind == "end" and not self.running:
            self.exit = event["exit"]
        elif kind == "collected" and not self.planned:
            self._plan = {test["id"]: _planned(test) for test in event["tests"]}
            self.planned = True
        elif kind == "session":
            described: dict[str, Any] = {key: event[key] for key in _DESCRIBED}
            described |= {key: tuple(event[key]) for key in ("capabilities", "dtypes")}
            self._session = replace(self._session, **described)
        elif kind == "unavailable":
            status = "unknown" if event["error"] == "BackendNotFoundError" else "unavailable"
            self._session = replace(self._session, status=status, message=str(event["message"]))
        elif kind == "error":
            message = f"{self._session.message}\n{event['message']}".strip()
            self._session = replace(self._session, status="error", message=message)

    @property
    def total(self) -> int | None:
        """Number of tests that are to run; None until it is known."""
        return len(self._plan) if self.planned else None

    @property
    def done(self) -> int:
        """Number of tests that have a result."""
        return len(self._results)

    @property
    def bad(self) -> Collection[str]:
        """Ids of the tests whose results fail the check."""
        return self._bad

    @property
    def remaining(self) -> list[str]:
        """Ids of the tests without a result, but for the running one."""
        return [test for test in self._plan if test not in self._results and test != self.running]

    def test_of(self, node: str, number: int) -> str:
        """Return the test that pytest calls ``node``, or that is this number of the present process; empty for none."""
        file, _, name = node.partition("::")
        test = f"{file.rpartition('/')[2]}::{name}"
        return test if test in self._plan else self._numbers.get(number, "")

    def charge(self, reason: str, ending: str = "", details: str = "", test: str | None = None) -> bool:
        """Make a test, by default the running one, failed; return whether there is one."""
        test = self.running if test is None else test
        if test not in self._plan:
            return False
        known = self._results.get(test, self._plan[test])
        self._set(replace(known, outcome="failed", reason=reason, details=details, ending=ending))
        if test == self.running:
            self.running, self.last = "", test
        return True

    def _set(self, result: Result) -> None:
        self._results[result.id] = result
        if result.is_bad:
            self._bad[result.id] = None

    def session(self, cause: str, ending: str) -> Session:
        """Return all that was told; ``cause`` and ``ending`` say why tests without a result did not run."""
        results = [
            self._results.get(test) or replace(result, reason=f"not run: {cause}", ending=ending, ran=False)
            for test, result in self._plan.items()
        ]
        return replace(self._session, results=tuple(results))


def _planned(test: Mapping[str, Any]) -> Result:
    lists: dict[str, Any] = {key: tuple(test[key]) for key in ("clauses", "cases", "needs")}
    return Result(id=test["id"], outcome="failed", mandatory=test["mandatory"], **lists)


def _filled(result: Result, event: Mapping[str, Any]) -> Result:
    if event["outcome"] not in OUTCOMES:
        raise ValueError(f"no outcome: {event['outcome']}")
    taken: dict[str, Any] = {key: event[key] for key in _TAKEN}
    return replace(result, **taken, observations=tuple(map(from_line, event["observations"])))

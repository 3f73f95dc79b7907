"""The log of a running session: one JSON object a line, so that what is done survives a process that dies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from unigrad_conformance.observations import Observation, from_line, to_line
from unigrad_conformance.results import Result, Session

__all__ = ["EventLog", "read_events", "session_of_log"]


class EventLog:
    """Append events to a file.

    Parameters
    ----------
    path
        File to start anew; None to log nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("", encoding="utf-8")

    def write(self, event: str, /, **data: Any) -> None:
        """Append one event; it is in the file when this returns."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **data}) + "\n")

    def encode(self, observations: Iterable[Observation]) -> list[dict[str, Any]]:
        """Return observations as JSON data; nothing if nothing is logged."""
        return [] if self._path is None else [to_line(observation) for observation in observations]


def read_events(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; a last line cut off by the death of its process is left out."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


_DESCRIBED = ("python", "platform", "framework", "framework_version", "unigrad_version", "guarantees")


def session_of_log(name: str, text: str, cause: str, last: str = "") -> Session:
    """Return what the log of a session says.

    Tests without a result are failed: ``cause`` says why the session ended, ``last`` are the last lines of its output.
    """
    session = Session(name)
    planned: dict[str, dict[str, Any]] = {}
    done: dict[str, dict[str, Any]] = {}
    running = ""
    for event in read_events(text):
        kind = event["event"]
        if kind == "session":
            described: dict[str, Any] = {key: event[key] for key in _DESCRIBED}
            described |= {key: tuple(event[key]) for key in ("capabilities", "dtypes")}
            session = replace(session, **described)
        elif kind == "unavailable":
            unknown = event["error"] == "BackendNotFoundError"
            session = replace(session, status="unknown" if unknown else "unavailable", message=event["message"])
        elif kind == "error":
            session = replace(session, status="error", message=f"{session.message}\n{event['message']}".strip())
        elif kind == "collected":
            planned = {test["id"]: test for test in event["tests"]}
        elif kind == "start":
            running = event["id"]
        elif kind == "result":
            done[event["id"]] = event
            running = ""
    results = []
    for test in planned.values():
        result = Result(
            id=test["id"],
            outcome="failed",
            clauses=tuple(test["clauses"]),
            cases=tuple(test["cases"]),
            needs=tuple(test["needs"]),
            mandatory=test["mandatory"],
        )
        if test["id"] in done:
            results.append(_filled(result, done[test["id"]]))
        elif test["id"] == running:
            results.append(replace(result, reason=f"{cause} in this test", details=last))
        else:
            results.append(replace(result, reason=f"not run: {cause}", ran=False))
    return replace(session, results=tuple(results))


def _filled(result: Result, event: Mapping[str, Any]) -> Result:
    taken: dict[str, Any] = {key: event[key] for key in ("outcome", "reason", "details", "url", "duration_s")}
    return replace(result, **taken, observations=tuple(map(from_line, event["observations"])))

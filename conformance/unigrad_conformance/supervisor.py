"""One backend being checked: its processes one after the other, the limits they keep, and what the end of one means."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unigrad_conformance.events import CANNOT_TELL, Journal
from unigrad_conformance.processes import Leftover, Worker, memory_to_spare, what_it_said
from unigrad_conformance.results import Session

__all__ = ["INTERRUPTED", "End", "Limits", "Supervisor"]

_ENDS = (0, 1, 5)  # of pytest: all passed, some failed, none selected
_USAGE = 4
_OTHER_ENDS = {
    2: "pytest was interrupted",
    3: "pytest broke",
    _USAGE: "pytest could not start",
    CANNOT_TELL: "it could no longer tell its results",
}
_ALL_MEMORY_S = 1.0
_EDGE_S = 60.0  # for starting and for ending, where the limit of a test is shorter


@dataclass(frozen=True)
class Limits:
    """What a backend may take.

    Parameters
    ----------
    test_s, backend_s
        Seconds for one test, and for all of a backend.
    memory_bytes
        Memory that the processes of a backend may hold at a time; by default four fifths of what is free at the start.
    """

    test_s: float = 120.0
    backend_s: float = 1800.0
    memory_bytes: int | None = None


@dataclass(frozen=True)
class End:
    """Why a process ended, as a clause and as a word or two; ``final`` if no other is to follow."""

    cause: str
    word: str
    final: bool = False

    @property
    def status(self) -> str:
        """Status of a session that ends so."""
        return {"time limit": "timeout", "interrupted": "interrupted"}.get(self.word, "died")


INTERRUPTED = End("the check was interrupted", "interrupted", final=True)


class Supervisor:
    """The processes of one backend.

    Parameters
    ----------
    name
        The backend.
    command
        What runs its tests; ``{folder}`` in it stands for the working folder, ``{pipe}`` for the pipe of events.
    environment
        Of the processes.
    limits
        What they may take.
    restart
        Whether a new process runs the tests that are left when one died in a test.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], limits: Limits, *, restart: bool = True
    ) -> None:
        self.name = name
        self.journal = Journal(name)
        self._command = command
        self._environment = environment
        self._limits = limits
        self._restart = restart
        self._memory = limits.memory_bytes or memory_to_spare()
        self._began = time.monotonic()
        self._changed = self._measured = self._began
        self._now: tuple[str, int | None] = ("", None)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._worker: Worker | None = None

    @property
    def ended(self) -> bool:
        """Whether the present process has ended."""
        return self._running.ended

    @property
    def _running(self) -> Worker:
        if self._worker is None:
            raise RuntimeError("no process was started")
        return self._worker

    def start(self, only: Sequence[str] | None = None) -> None:
        """Start a process for all tests, or for these; ``OSError`` if it cannot be."""
        self.journal.begin()
        self._folder = tempfile.TemporaryDirectory(prefix="unigrad-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        command = [part.replace("{folder}", str(folder)) for part in self._command]
        try:
            if only is not None:
                (folder / "remaining.txt").write_text("\n".join(only), encoding="utf-8")
                command.append(f"--unigrad-remaining={folder / 'remaining.txt'}")
            self._worker = Worker(command, folder, self._environment)
        except OSError:
            self._folder.cleanup()
            raise
        self._changed = self._measured = time.monotonic()
        self._now = ("", None)

    def read(self) -> None:
        """Take what the process told."""
        for _ in range(100):  # a test may write into the pipe without end
            data = self._running.read()
            self.journal.feed(data)
            if not data:
                break
        now = (self.journal.running or self.journal.last, self.journal.exit)
        if now != self._now:
            self._now, self._changed = now, time.monotonic()

    def broken_limit(self) -> End | None:
        """Return which limit the process has broken."""
        now, limits = time.monotonic(), self._limits
        if now - self._began > limits.backend_s:
            return End(f"killed after the limit of {limits.backend_s:g} s (--timeout)", "time limit", final=True)
        limit = limits.test_s if self.journal.running else max(limits.test_s, _EDGE_S)
        if now - self._changed > limit:
            outside = "" if self.journal.running else " outside of a test"
            return End(f"killed after the limit of {limit:g} s{outside} (--test-timeout)", "time limit")
        of_all = now - self._measured > _ALL_MEMORY_S
        if of_all:
            self._measured = now
        if self._memory is not None and self._running.memory(of_all=of_all) > self._memory:
            return End(f"killed at the limit of {self._memory / 2**30:.2g} GiB of memory (--memory)", "memory limit")
        return None

    def conclude(self, killed: End | None = None) -> Session | None:
        """Kill the process if it is to be, judge its end, and return the session, or None if a new process goes on."""
        worker, journal = self._running, self.journal
        if killed is not None:
            worker.kill(tell_where=killed.word == "time limit")
        left = worker.clear()
        self.read()
        code, output = worker.code, worker.output()
        self.close()
        unknown = self._charge(left)
        if killed is None and code in _ENDS and code == journal.exit and not (journal.remaining and self._restart):
            session = self._session("the session ended", "not run")
            return (
                replace(session, status="error", message=unknown)
                if unknown and session.status == "complete"
                else session
            )
        if killed is None and code == _USAGE and not journal.done:
            session = replace(self._session(), results=())
            if session.status != "complete":
                return session
            message = output[output.rfind("ERROR:") :].strip()
            return replace(session, status="usage" if session.framework else "error", message=message)
        return self._after_death(killed or _end_of(code, told=code == journal.exit), what_it_said(output))

    def _charge(self, left: Sequence[Leftover]) -> str:
        """Make tests that left a process behind failed; return what is said of one that no test is known to have started."""
        unknown = ""
        for one in left:
            reason = f"left a process behind, which was ended: {one.command:.200}"
            test = self.journal.test_of(one.node, one.number)
            if not test:
                unknown = reason
            elif test not in (self.journal.running, *self.journal.bad):
                self.journal.charge(reason, "left a process", test=test)
        return unknown

    def _after_death(self, end: End, last: str) -> Session | None:
        journal = self.journal
        if end.status == "interrupted":
            return self._ended(end)
        in_test = journal.charge(f"{end.cause} in this test", end.word, last)
        if not in_test and journal.remaining:
            in_test = journal.charge(f"{end.cause} right after this test", end.word, last, test=journal.last)
        if not in_test or end.final or not self._restart:
            return self._ended(end, last)
        if not journal.remaining:
            return self._session()
        try:
            self.start(journal.remaining)
        except OSError as error:
            return self._ended(End(f"no other process could be started ({error})", "not run"))
        return None

    def _ended(self, end: End, last: str = "") -> Session:
        message = f"{end.cause}; its last lines:\n{last}" if last else end.cause
        session = self._session(end.cause, end.word)
        return session if session.status != "complete" else replace(session, status=end.status, message=message)

    def _session(self, cause: str = "", word: str = "") -> Session:
        return replace(self.journal.session(cause, word), duration_s=round(time.monotonic() - self._began, 2))

    def abandon(self) -> None:
        """End the process without asking what it did."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.clear()
            self.close()

    def close(self) -> None:
        """Let go of the process, which has ended, and of its folder."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._folder is not None:
            self._folder.cleanup()


def _end_of(code: int, *, told: bool) -> End:
    if told:
        return End(f"the session was ended early (exit code {code})", f"exit code {code}")
    if code >= 0:
        known = f": {_OTHER_ENDS[code]}" if code in _OTHER_ENDS else ""
        return End(f"process died (exit code {code}{known})", f"exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; is memory short?" if -code == signal.SIGKILL else ""
    return End(f"process died (signal {-code}, {name}{hint})", name)

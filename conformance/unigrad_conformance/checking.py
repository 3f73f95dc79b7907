"""A whole check: choose the backends, run them, compare them, and say how it ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from unigrad.errors import ArgumentError, BackendNotFoundError, BackendUnavailableError
from unigrad.plugins import backend_names
from unigrad_conformance import runner
from unigrad_conformance.clauses import CLAUSES, clauses_named
from unigrad_conformance.compare import agreements
from unigrad_conformance.outputs import printable
from unigrad_conformance.probing import explained
from unigrad_conformance.progress import Display
from unigrad_conformance.report import exit_code, report_text
from unigrad_conformance.results import FORMAT, Session, finish, session_to_json

__all__ = ["Outcome", "check_all"]

_INTERRUPTED = 128 + signal.SIGINT
_PLACES = {"agreement": "checked by a check of several backends", "later": "not checked yet"}


@dataclass(frozen=True)
class Outcome:
    """What came of a check.

    Parameters
    ----------
    code
        Exit code; 130 if it was interrupted.
    text
        The report.
    sessions
        In the order of their names.
    unwritten
        Why results could not be kept in the folder; empty if they were.
    """

    code: int
    text: str
    sessions: tuple[Session, ...]
    unwritten: tuple[str, ...] = ()

    def json(self) -> str:
        """Return all of it as JSON text, arrays left out."""
        data = {
            "format": FORMAT,
            "exit": self.code,
            "sessions": [session_to_json(session) for session in self.sessions],
            "agreement": [asdict(agreement) for agreement in agreements(self.sessions)],
        }
        return f"{json.dumps(_plain(data), indent=1, allow_nan=False)}\n"


def check_all(
    names: Sequence[str],
    folder: Path,
    *,
    pattern: str | None = None,
    jobs: int | None = None,
    limits: runner.Limits | None = None,
    suite: str = runner.SUITE,
) -> Outcome:
    """Check the named backends, or all that are installed.

    Parameters
    ----------
    names
        ``NAME`` or ``NAME=PYTHON``.
    folder
        Existing folder for the results.
    pattern
        A test id, clauses such as ``"G1, C4"``, or an expression for pytest's ``-k``.
    jobs
        Backends at a time; by default one per core.
    limits
        What each backend may take.
    suite
        Import name of the package of tests.

    Raises
    ------
    BackendNotFoundError, BackendUnavailableError
        A named backend is unknown, or its framework is not installed.
    ArgumentError
        A name given twice, or an interpreter that does not exist.
    """
    targets, absent, notes = _choose(names)
    named = clauses_named(pattern or "")
    select = pattern if "::" in (pattern or "") else ",".join(named) or None
    at_once = min(jobs or os.cpu_count() or 1, max(len(targets), 1))
    unwritten: list[str] = []

    def keep(place: Path, session: Session) -> None:
        try:
            finish(place, session)
        except OSError as error:
            unwritten.append(f"cannot keep the results of {session.backend} in {place}: {error.strerror or error}")

    with Display([target.name for target in targets]) as display, _stopping() as stopped:
        sessions = runner.check(
            targets,
            folder,
            select=select,
            pattern=None if select else pattern,
            jobs=at_once,
            limits=limits,
            suite=suite,
            watch=display.show,
            stopped=stopped,
            keep=keep,
        )
    for session in absent:
        keep(folder, replace(session, selection=pattern))
    sessions = sorted([*sessions, *absent], key=lambda session: session.backend)
    interrupted = any(session.status == "interrupted" for session in sessions)
    code = _INTERRUPTED if interrupted else exit_code(sessions)
    text = printable("\n\n".join([report_text(sessions), *notes, _closing(sessions, code, pattern)]))
    return Outcome(code, text, tuple(sessions), tuple(unwritten))


@contextlib.contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Let the first signal that ends a program only be noted; the second ends it as ever."""
    came: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for number in map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            before[number] = signal.getsignal(number)
            if before[number] is not signal.SIG_IGN:  # as nohup does
                signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _choose(names: Sequence[str]) -> tuple[list[runner.Target], list[Session], list[str]]:
    """Return what to run, sessions of what is installed and does not load, and notes on what is not installed."""
    targets: list[runner.Target] = []
    absent: list[Session] = []
    notes: list[str] = []
    parsed = [(text, runner.Target.parse(text)) for text in names or backend_names()]
    rows = {row.name: row for row in explained(list({target.name for text, target in parsed if "=" not in text}))}
    for text, target in parsed:
        if target.name in [known.name for known in targets] + [session.backend for session in absent]:
            raise ArgumentError(f"backend {target.name!r} is named twice")
        if "=" in text:
            if shutil.which(target.python) is None:
                raise ArgumentError(f"{text}: there is no interpreter {target.python!r}")
            targets.append(target)
            continue
        row = rows[target.name]
        message = row.error or ""
        if row.status == "unknown":
            raise BackendNotFoundError(message)
        if row.status == "missing" and names:
            raise BackendUnavailableError(message)
        if row.status == "missing":
            notes.append(f"not checked: {message}")
        elif row.status in ("ready", "import order"):
            targets.append(target)
        else:
            absent.append(Session(row.name, status="unavailable", message=message, framework=row.framework or ""))
    return targets, absent, notes


def _closing(sessions: Sequence[Session], code: int, pattern: str | None) -> str:
    if code == _INTERRUPTED:
        ran = sum(result.ran for session in sessions for result in session.results)
        return f"INTERRUPTED: {ran} tests ran, of {sum(len(session.results) for session in sessions)}"
    if code == 2 and any(session.status == "usage" for session in sessions):
        return f"NO TEST RAN: the selection {pattern!r} cannot be read"
    if code == 2:
        empty = ", ".join(session.backend for session in sessions if not session.results) or "anything"
        if pattern is None:
            return f"NO TEST RAN on {empty}"
        elsewhere = [CLAUSES[name] for name in clauses_named(pattern) if CLAUSES[name].checked_by != "suite"]
        places = [
            f"{clause.name} is {_PLACES.get(clause.checked_by) or f'checked by {clause.checked_by}'}"
            for clause in elsewhere
        ]
        return "; ".join([f"NO TEST RAN on {empty}: none matches {pattern!r}", *places])
    tests = sum(len(session.results) for session in sessions)
    where = f"{tests} tests on {', '.join(session.backend for session in sessions)}"
    return f"KEPT: {where}" if code == 0 else f"FAILED: see above, of {where}"


def _plain(data: Any) -> Any:
    """Return the data with infinities and NaN, which JSON has not, as texts."""
    if isinstance(data, dict):
        return {key: _plain(item) for key, item in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    return data if not isinstance(data, float) or math.isfinite(data) else repr(data)

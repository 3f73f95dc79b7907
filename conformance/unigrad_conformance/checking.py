"""A whole check: choose the backends, run them, compare them, and say how it ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unigrad.errors import ArgumentError, BackendNotFoundError, BackendUnavailableError
from unigrad.plugins import backend_names, explain
from unigrad_conformance import runner
from unigrad_conformance.clauses import CLAUSES, clauses_named
from unigrad_conformance.compare import agreements
from unigrad_conformance.progress import Display
from unigrad_conformance.report import exit_code, report_text
from unigrad_conformance.results import FORMAT, Session, finish, session_to_json

__all__ = ["Outcome", "check_all"]

_PLACES = {"agreement": "checked by a check of several backends", "later": "not checked yet"}


@dataclass(frozen=True)
class Outcome:
    """Exit code, text and JSON data of a check."""

    code: int
    text: str
    data: dict[str, Any]


def check_all(
    names: Sequence[str],
    folder: Path,
    *,
    pattern: str | None = None,
    jobs: int | None = None,
    timeout_s: float = 900.0,
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
    timeout_s
        Seconds after which the process of a backend is killed.
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
    with Display([target.name for target in targets]) as display:
        sessions = runner.check(
            targets,
            folder,
            select=select,
            pattern=None if select else pattern,
            jobs=at_once,
            timeout_s=timeout_s,
            suite=suite,
            watch=display.show,
        )
    for session in absent:
        finish(folder, replace(session, selection=pattern))
    sessions = sorted([*sessions, *absent], key=lambda session: session.backend)
    code = exit_code(sessions)
    text = "\n\n".join([report_text(sessions), *notes, _closing(sessions, code, pattern)])
    return Outcome(code, text, _data(sessions, code))


def _choose(names: Sequence[str]) -> tuple[list[runner.Target], list[Session], list[str]]:
    """Return what to run, sessions of what is installed and does not load, and notes on what is not installed."""
    targets: list[runner.Target] = []
    absent: list[Session] = []
    notes: list[str] = []
    for text in names or backend_names():
        target = runner.Target.parse(text)
        if target.name in [known.name for known in targets] + [session.backend for session in absent]:
            raise ArgumentError(f"backend {target.name!r} is named twice")
        if "=" in text:
            if shutil.which(target.python) is None:
                raise ArgumentError(f"{text}: there is no interpreter {target.python!r}")
            targets.append(target)
            continue
        row = explain(target.name)
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


def _data(sessions: Sequence[Session], code: int) -> dict[str, Any]:
    compared = []
    for agreement in agreements(sessions):
        data = asdict(agreement)
        for difference in data["differences"]:
            found = difference["comparison"]
            found |= {key: repr(found[key]) for key in ("size", "relative") if found[key] == float("inf")}
        compared.append(data | {"worst": agreement.worst if agreement.worst < float("inf") else "inf"})
    return {
        "format": FORMAT,
        "exit": code,
        "sessions": [session_to_json(session) for session in sessions],
        "agreement": compared,
    }

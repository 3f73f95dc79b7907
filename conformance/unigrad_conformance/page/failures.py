"""What failed, and what was refused or known to fail, as lists with their reasons."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from unigrad_conformance.page.text import shorten
from unigrad_conformance.report import command
from unigrad_conformance.results import Result, Session

__all__ = ["Failure", "Reason", "failures_of", "reasons_of"]

_MOST_DETAILS = 100  # failures of one backend that keep their traceback
_MOST_CHARACTERS = 20_000  # of one traceback


@dataclass(frozen=True)
class Failure:
    """One entry of the list of failures.

    Parameters
    ----------
    anchor
        Its ``id`` in the page.
    kind
        ``"failed"``, ``"no sample"``, ``"not run"``, or ``"session"`` for what happened to the whole backend.
    title
        Id of the test, or one line.
    clauses
        Names.
    reason, details
        One line, and the traceback.
    command
        What repeats it.
    tests
        Ids of the tests that did not run.
    ending
        What ended the process in the test, such as ``"SIGSEGV"``; empty if it went on.
    """

    anchor: str
    kind: str
    title: str
    clauses: tuple[str, ...]
    reason: str
    details: str
    command: str
    tests: tuple[str, ...] = ()
    ending: str = ""


@dataclass(frozen=True)
class Reason:
    """Tests of one backend that did not pass for one reason, which is no failure."""

    outcome: str
    reason: str
    url: str
    tests: tuple[str, ...]
    clauses: tuple[str, ...]


def failures_of(session: Session, prefix: str) -> tuple[list[Failure], dict[str, str]]:
    """Return the failures of a backend, and the anchor of each test among them.

    Parameters
    ----------
    session
        One backend.
    prefix
        Begins each anchor.
    """
    found = list(_session_failures(session, prefix))
    anchors: dict[str, str] = {}
    for reason, tests in _not_run(session).items():
        anchor = f"{prefix}.{len(found)}"
        anchors |= dict.fromkeys((test.id for test in tests), anchor)
        ids = tuple(test.id for test in tests)
        title = f"{len(ids):,} {'test was' if len(ids) == 1 else 'tests were'} not run"
        found.append(Failure(anchor, "not run", title, _clauses(tests), reason, "", _again(session), ids))
    kept = 0
    for result in session.bad:
        if not result.ran:
            continue
        anchors[result.id] = anchor = f"{prefix}.{len(found)}"
        details = shorten(result.details, _MOST_CHARACTERS)
        kept += bool(details)
        if kept > _MOST_DETAILS:
            details = f"The page keeps {_MOST_DETAILS} tracebacks of a backend; the command below shows this one."
        found.append(
            Failure(
                anchor,
                result.outcome,
                result.id,
                result.clauses,
                shorten(result.reason, _MOST_CHARACTERS),
                details,
                command(session, result),
                ending=result.ending,
            )
        )
    return found, anchors


def _session_failures(session: Session, prefix: str) -> Iterator[Failure]:
    if session.status != "complete":
        message = shorten(session.message, _MOST_CHARACTERS)
        title = f"the check ended early: {session.status}"
        yield Failure(f"{prefix}.0", "session", title, (), message, "", _again(session))
    elif not session.results:
        yield Failure(f"{prefix}.0", "session", "no test ran", (), "nothing matches the selection", "", _again(session))


def _again(session: Session) -> str:
    selection = [] if session.selection is None else ["-k", session.selection]
    return shlex.join(["unigrad", "check", session.target or session.backend, *selection])


def _not_run(session: Session) -> Mapping[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in session.results:
        if not result.ran:
            found.setdefault(result.reason, []).append(result)
    return found


def _clauses(results: list[Result]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for result in results for name in result.clauses))


def reasons_of(session: Session) -> list[Reason]:
    """Return why tests of a backend did not pass although nothing failed: refused, known to fail, without a sample."""
    found: dict[tuple[str, str, str], list[Result]] = {}
    for result in session.results:
        if result.outcome != "passed" and not result.is_bad:
            found.setdefault((result.outcome, result.reason, result.url), []).append(result)
    reasons = [
        Reason(outcome, reason, url, tuple(result.id for result in results), _clauses(results))
        for (outcome, reason, url), results in found.items()
    ]
    return sorted(reasons, key=lambda reason: (reason.outcome, -len(reason.tests)))

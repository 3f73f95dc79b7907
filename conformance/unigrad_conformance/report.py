"""The tables of a check, made from results alone: clauses by backends, agreement, and what failed."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unigrad_conformance.clauses import CLAUSES, Clause
from unigrad_conformance.compare import REFERENCE, Agreement, Difference, agreements
from unigrad_conformance.results import Result, Session
from unigrad_conformance.tables import Table

__all__ = ["Cell", "agreement_table", "cells", "command", "exit_code", "matrix", "report_text", "summary_table"]

# The worst outcome of the tests of a clause is its cell.
_WORST_FIRST = ("failed", "no sample", "known failure", "refused", "passed")


def exit_code(sessions: Sequence[Session]) -> int:
    """Return 0 for all kept, 1 for any failure or disagreement, 2 if a backend ran no test or the usage was wrong."""
    if any(session.status in ("usage", "unknown") for session in sessions):
        return 2
    failed = any(session.status != "complete" or session.bad for session in sessions)
    if failed or any(agreement.faults for agreement in agreements(sessions)):
        return 1
    return 0 if sessions and all(session.results for session in sessions) else 2


def summary_table(sessions: Sequence[Session]) -> Table:
    """Return one row per backend: versions and counts."""
    rows = []
    for session in sessions:
        counts = [
            str(session.count(outcome)) for outcome in ("passed", "refused", "known failure", "no sample", "failed")
        ]
        framework = f"{session.framework} {session.framework_version}".strip() or "-"
        status = "complete" if session.status == "complete" else f"FAILED: {session.status}"
        rows.append((session.backend, framework, session.python or "-", *counts, f"{session.duration_s:.1f} s", status))
    columns = ("backend", "framework", "python", "passed", "refused", "known", "no sample", "failed", "time", "session")
    return Table("Backends", columns, tuple(rows))


@dataclass(frozen=True)
class Cell:
    """What the tests of one clause did on one backend.

    Parameters
    ----------
    state
        ``"kept"``, another outcome, which is the worst of all, or ``"not yet"``.
    count, total
        Number of tests with that outcome, and of all; both 0 without tests.
    endings
        What ended the process in tests of the clause, or kept them from running, such as ``"SIGSEGV"``.
    passed
        Number of tests that passed.
    """

    state: str
    count: int = 0
    total: int = 0
    endings: tuple[str, ...] = ()
    passed: int = 0

    def text(self, counts: bool = True) -> str:
        """Return the state, whether or how many of the tests had it if that is not all, and what ended the process if anything did."""
        text = self.state
        if self.count != self.total:
            if counts:
                text = f"{self.state} {self.count}/{self.total}"
            elif self.state != "failed":
                text = f"{'kept; ' if self.passed else ''}{self.state} in part"
        return f"{text}: {', '.join(self.endings)}" if self.endings else text


def cells(sessions: Sequence[Session]) -> Iterator[tuple[Clause, tuple[Cell, ...]]]:
    """Give each clause with one cell per backend; a clause without a test in a selection is left out."""
    compared = {agreement.backend: agreement for agreement in agreements(sessions)}
    partial = any(session.selection is not None for session in sessions)
    for clause in CLAUSES.values():
        found = [_cell(clause, session, compared.get(session.backend)) for session in sessions]
        if any(found) or (clause.checked_by in ("suite", "later") and not partial):
            yield (
                clause,
                tuple(
                    cell or (Cell("not yet") if session.status == "complete" or session.results else _no_cell(session))
                    for cell, session in zip(found, sessions, strict=True)
                ),
            )


def _cell(clause: Clause, session: Session, agreement: Agreement | None) -> Cell | None:
    """Return one cell; None where nothing was tested."""
    results = [result for result in session.results if clause.name in result.clauses]
    outcomes = [result.outcome for result in results]
    if clause.name == "X1" and agreement is not None and agreement.compared:
        outcomes.append("failed" if agreement.faults else "passed")
    if not outcomes:
        return None
    worst = next(outcome for outcome in _WORST_FIRST if outcome in outcomes)
    endings = tuple(dict.fromkeys(result.ending for result in results if result.ending))
    state = "kept" if worst == "passed" else worst
    return Cell(state, outcomes.count(worst), len(outcomes), endings, outcomes.count("passed"))


def _no_cell(session: Session) -> Cell:
    return Cell("failed", endings=(session.status,))


def matrix(sessions: Sequence[Session], counts: bool = True) -> Table:
    """Return the clauses by the backends; a clause without a test in a selection has no row.

    Parameters
    ----------
    sessions
        What was checked.
    counts
        Whether a cell says how many of the tests of the clause had its outcome. Without, a new test changes no cell.
    """
    rows = [(clause.name, clause.title, *(cell.text(counts) for cell in row)) for clause, row in cells(sessions)]
    return Table("Clauses", ("clause", "promise", *(session.backend for session in sessions)), tuple(rows))


def agreement_table(compared: Sequence[Agreement]) -> Table:
    """Return one row per backend compared with the reference."""
    rows = []
    for agreement in compared:
        choices = len(agreement.differences) - len(agreement.faults)
        worst = f"{agreement.worst:.2g} x bound"
        rows.append(
            (
                agreement.backend,
                str(agreement.compared),
                str(len(agreement.faults)),
                str(choices),
                worst,
                agreement.worst_at or "-",
            )
        )
    columns = ("backend", "observations", "differ", "choices differ", "worst", "at")
    return Table(f"Agreement with {REFERENCE}", columns, tuple(rows))


def _difference_lines(agreement: Agreement, difference: Difference) -> Iterator[str]:
    found = difference.comparison
    kind = "choice (X2)" if difference.choice else "DIFFERS"
    pair = f"{agreement.backend} against {agreement.reference}"
    yield f"{kind}: {pair}, {difference.test}, {difference.name}: {found.label}"
    if found.label == "value":
        yield (
            f"    first at {found.where or 'the scalar'}; largest difference {found.size:.3g} "
            f"({found.relative:.3g} of the largest value), bound {found.bound:.3g}"
        )
    elif found.where:
        yield f"    at {found.where}" if found.where.startswith("[") else f"    {found.where}"
    if found.label not in ("exact value", "missing"):
        yield f"    bound because: {difference.reason}"


def command(session: Session, result: Result) -> str:
    """Return the command that runs one test alone."""
    return shlex.join(["unigrad", "check", session.target or session.backend, "-k", result.id])


def _failure_lines(session: Session, result: Result) -> Iterator[str]:
    label = "NO SAMPLE" if result.outcome == "no sample" else "FAILED"
    yield f"{label}: {session.backend}, {result.id} ({', '.join(result.clauses)})"
    if result.reason.partition("\n")[0] not in result.details:
        yield textwrap.indent(result.reason, "    ")
    if result.details:
        yield textwrap.indent(result.details, "    ")
    yield f"    run it alone: {command(session, result)}"


def _session_lines(session: Session) -> Iterator[str]:
    if session.status != "complete":
        yield f"FAILED: {session.backend} ({session.status})"
        yield textwrap.indent(session.message, "    ")
    refused: dict[str, int] = {}
    for result in session.results:
        if result.outcome == "known failure":
            yield f"known failure: {session.backend}, {result.id}: {result.reason} ({result.url})"
        if result.outcome == "no sample" and not result.mandatory:
            yield f"no sample: {session.backend}, {result.id}: {result.reason}"
        if result.outcome == "refused":
            refused[result.reason] = refused.get(result.reason, 0) + 1
    for reason, count in refused.items():
        yield f"refused: {session.backend}, {count} {'test' if count == 1 else 'tests'}: {reason}"
    not_run = [result for result in session.results if not result.ran]
    if not_run:
        yield f"FAILED: {session.backend}, {len(not_run)} tests {not_run[0].reason}"


def report_text(sessions: Sequence[Session]) -> str:
    """Return the whole report as text."""
    compared = agreements(sessions)
    parts = [summary_table(sessions).text()]
    if any(session.results for session in sessions):
        parts.append(matrix(sessions).text())
    if all(session.selection is None for session in sessions):
        parts.append(_elsewhere())
    if compared:
        parts.append(agreement_table(compared).text())
        wider = [
            f"bounds: {one.backend} against {one.reference}, {count} of {one.compared} {reason}"
            for one in compared
            for reason, count in one.widened.items()
        ]
        parts.append("\n".join(wider))
        lines = [
            line for one in compared for difference in one.differences for line in _difference_lines(one, difference)
        ]
        parts += ["\n".join(lines)] if lines else []
    elif len(sessions) > 1 or all(session.backend != REFERENCE for session in sessions):
        parts.append(f"Agreement: not compared, as {REFERENCE!r} was not checked along.")
    for session in sessions:
        parts += ["\n".join(_session_lines(session))]
    parts += [
        "\n".join(_failure_lines(session, result)) for session in sessions for result in session.bad if result.ran
    ]
    return "\n\n".join(part for part in parts if part)


def _elsewhere() -> str:
    places: dict[str, list[str]] = {}
    for clause in CLAUSES.values():
        if clause.checked_by not in ("suite", "later", "agreement"):
            places.setdefault(clause.checked_by, []).append(clause.name)
    return "Checked elsewhere: " + "; ".join(f"{', '.join(names)} by {place}" for place, names in places.items())

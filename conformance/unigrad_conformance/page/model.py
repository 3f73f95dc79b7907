"""The page as data: everything that the templates put out, in the order in which it stands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.clauses import CLAUSES, Clause
from unigrad_conformance.compare import REFERENCE
from unigrad_conformance.page.agreement import Compared, compared_of
from unigrad_conformance.page.chart import Tick, ticks
from unigrad_conformance.page.failures import Failure, Reason, failures_of, reasons_of
from unigrad_conformance.page.groups import Group, groups_of
from unigrad_conformance.page.text import slug
from unigrad_conformance.report import Cell, cells, exit_code
from unigrad_conformance.results import OUTCOMES, Session

__all__ = ["Column", "Did", "Fact", "Page", "Row", "page_of"]

_PARTS = {
    "A": "Plugins and declarations",
    "B": "Blocks",
    "G": "Gradient collector",
    "R": "Registration of parameters",
    "C": "Checkpoint",
    "M": "Microbatch",
    "Y": "Memory",
    "D": "Determinism",
    "X": "Agreement",
}


@dataclass(frozen=True)
class Column:
    """One backend: its session, failures, reasons, and the share of each outcome in percent."""

    index: int
    key: str
    session: Session
    counts: tuple[tuple[str, int], ...]
    shares: tuple[tuple[str, float, float], ...]
    failures: list[Failure]
    reasons: list[Reason]


@dataclass(frozen=True)
class Did:
    """What the tests of one clause did on one backend."""

    column: Column
    cell: Cell
    anchor: str
    groups: list[Group]
    duration_s: float


@dataclass(frozen=True)
class Row:
    """One clause; ``part`` is the heading above it, or empty below the first of its part."""

    clause: Clause
    part: str
    cells: list[Did]


@dataclass(frozen=True)
class Fact:
    """One row of the environment."""

    name: str
    explained: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Page:
    """All of it."""

    verdict: str
    state: str
    command: str
    tests: int
    counts: dict[str, int]
    columns: list[Column]
    rows: list[Row]
    states: dict[str, int]
    elsewhere: dict[str, list[Clause]]
    reference: str
    compared: list[Compared]
    ticks: list[Tick]
    environment: dict[str, list[Fact]]
    version: str


def page_of(sessions: Sequence[Session]) -> Page:
    """Return the page of a check."""
    columns: list[Column] = []
    anchors = []
    for index, session in enumerate(sessions):
        key = slug(session.backend)
        if key in [column.key for column in columns]:
            key = f"{key}.{index}"
        failures, by_test = failures_of(session, f"failure.{key}")
        columns.append(_column(index, key, session, failures))
        anchors.append(by_test)
    rows = _rows(sessions, columns, anchors)
    found = [did.cell.state for row in rows for did in row.cells]
    states = ("failed", "no sample", "known failure", "refused", "kept", "not yet")
    verdict, state = _verdict(sessions)
    return Page(
        verdict=verdict,
        state=state,
        command=_command(sessions),
        tests=sum(len(session.results) for session in sessions),
        counts={outcome: sum(session.count(outcome) for session in sessions) for outcome in OUTCOMES},
        columns=columns,
        rows=rows,
        states={state: found.count(state) for state in states if state in found},
        elsewhere=_elsewhere(sessions),
        reference=REFERENCE,
        compared=compared_of(sessions),
        ticks=ticks(),
        environment=_environment(sessions),
        version=next((session.unigrad_version for session in sessions if session.unigrad_version), ""),
    )


def _verdict(sessions: Sequence[Session]) -> tuple[str, str]:
    if any(session.status == "interrupted" for session in sessions):
        return "Interrupted", "failed"
    return {0: ("Kept", "kept"), 1: ("Failed", "failed")}.get(exit_code(sessions), ("Not checked", "not yet"))


def _column(index: int, key: str, session: Session, failures: list[Failure]) -> Column:
    counts = tuple((outcome, session.count(outcome)) for outcome in OUTCOMES)
    shares, left = [], 0.0
    for outcome, number in counts:
        share = 100 * number / max(len(session.results), 1)
        if number:
            shares.append((outcome, round(left, 3), round(share, 3)))
        left += share
    return Column(index, key, session, counts, tuple(shares), failures, reasons_of(session))


def _rows(sessions: Sequence[Session], columns: list[Column], anchors: list[dict[str, str]]) -> list[Row]:
    rows, last = [], ""
    for clause, found in cells(sessions):
        part = clause.name[0]
        row = []
        for column, cell in zip(columns, found, strict=True):
            results = [result for result in column.session.results if clause.name in result.clauses]
            row.append(
                Did(
                    column,
                    cell,
                    f"{clause.name}.{column.key}",
                    groups_of(results, anchors[column.index]),
                    sum(result.duration_s for result in results),
                )
            )
        rows.append(Row(clause, "" if part == last else _PARTS.get(part, part), row))
        last = part
    return rows


def _command(sessions: Sequence[Session]) -> str:
    chosen = list(dict.fromkeys(session.selection for session in sessions if session.selection is not None))
    targets = [session.target or session.backend for session in sessions]
    return shlex.join(["unigrad", "check", *targets, *(["-k", chosen[0]] if len(chosen) == 1 else [])])


def _elsewhere(sessions: Sequence[Session]) -> dict[str, list[Clause]]:
    places: dict[str, list[Clause]] = {}
    if all(session.selection is None for session in sessions):
        for clause in CLAUSES.values():
            if clause.checked_by not in ("suite", "later", "agreement"):
                places.setdefault(clause.checked_by, []).append(clause)
    return places


def _environment(sessions: Sequence[Session]) -> dict[str, list[Fact]]:
    def fact(name: str, *values: str, explained: str = "") -> Fact:
        return Fact(name, explained, tuple(value or "unknown" for value in values))

    ran = [
        fact("framework", *(f"{session.framework} {session.framework_version}".strip() for session in sessions)),
        fact("python", *(session.python for session in sessions)),
        fact("machine", *(session.platform for session in sessions)),
        fact("unigrad", *(session.unigrad_version for session in sessions)),
        fact("checked as", *(session.target or session.backend for session in sessions)),
        fact("selection", *("all tests" if session.selection is None else session.selection for session in sessions)),
        fact("dtypes", *(", ".join(session.dtypes) for session in sessions)),
    ]
    capabilities = [
        fact(
            capability.name.lower(),
            *("declared" if capability.name in session.capabilities else "not declared" for session in sessions),
            explained=capability.value,
        )
        for capability in Capability
    ]
    guarantees = [
        fact(
            guarantee.name.lower(),
            *(session.guarantees.get(guarantee.name, "not declared") for session in sessions),
            explained=guarantee.value,
        )
        for guarantee in Guarantee
    ]
    return {"What ran": ran, "Operations that a backend may decline": capabilities, "Guarantees": guarantees}

"""Proof of the suite: each mutant of the reference is put in, and a test of the clause that it breaks must fail."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from unigrad.errors import ArgumentError
from unigrad_conformance import mutation
from unigrad_conformance.mutation import Mutant
from unigrad_conformance.results import Session
from unigrad_conformance.runner import SUITE, Limits, Target, check

__all__ = ["Verdict", "run_mutants", "try_mutant"]

_PLUGIN = "unigrad_conformance.mutants_plugin"
_LIMIT_S = 120.0
_WIDTH = 170
_OWN_FAULTS = ("NameError", "UnboundLocalError", "AttributeError", "SyntaxError", "ImportError", "ModuleNotFoundError")


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Parameters
    ----------
    mutant
        The mutant.
    outcome
        ``"killed"``, ``"survived"``, or ``"error"`` if it could not be tried.
    test
        Id of the test that killed it.
    reason
        How that test failed, or what the error is.
    seconds
        Wall-clock seconds.
    """

    mutant: Mutant
    outcome: str
    test: str = ""
    reason: str = ""
    seconds: float = 0.0


def run_mutants(console: Console, jobs: int, only: Collection[str] | None = None) -> int:
    """Try the mutants, print what killed each, and return 0 only if all were killed.

    Parameters
    ----------
    console
        Where to print.
    jobs
        Processes at a time.
    only
        Names of the mutants to try; default: all.

    Raises
    ------
    ArgumentError
        If ``only`` names a mutant that does not exist.
    MutationError
        If the descriptions of the mutants can't be read.
    """
    known = mutation.load()
    unknown = sorted(set(only or ()) - set(known))
    if unknown:
        raise ArgumentError(f"no mutant named {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [mutant for name, mutant in known.items() if only is None or name in only]
    if not console.is_terminal:  # a file or pipe has no width, and rich's 80 columns are too narrow for ids of tests
        console.width = max(console.width, _WIDTH)
    began = time.monotonic()
    verdicts = {}
    for verdict in track(_all(chosen, jobs), "mutants", len(chosen), console=console, transient=True):
        verdicts[verdict.mutant.name] = verdict
    ordered = [verdicts[mutant.name] for mutant in chosen]
    console.print(_table(ordered))
    left = [verdict for verdict in ordered if verdict.outcome != "killed"]
    killed = len(ordered) - len(left)
    console.print(f"{killed} of {len(ordered)} mutants killed in {time.monotonic() - began:.0f} s")
    for verdict in left:
        mutant = verdict.mutant
        console.print(
            f"{verdict.outcome}: {mutant.name} ({mutant.clause}): {mutant.breaks}", markup=False, soft_wrap=True
        )
        console.print(f"    {verdict.reason}", markup=False, soft_wrap=True)
    return 0 if chosen and not left else 1


def _all(mutants: list[Mutant], jobs: int) -> Iterator[Verdict]:
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        for future in as_completed([pool.submit(try_mutant, mutant) for mutant in mutants]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _table(verdicts: list[Verdict]) -> Table:
    table = Table(title="mutants of the reference", title_justify="left")
    for heading in ("mutant", "clause", "outcome", "killed by"):
        table.add_column(heading, overflow="fold")
    table.add_column("seconds", justify="right")
    for verdict in verdicts:
        mutant = verdict.mutant
        cells = [mutant.name, mutant.clause, verdict.outcome, verdict.test.replace("[", r"\[")]
        table.add_row(*cells, f"{verdict.seconds:.1f}")
    return table


def try_mutant(mutant: Mutant) -> Verdict:
    """Put a mutant in and run the test that it names; if that does not kill it, all tests of the clause."""
    began = time.monotonic()
    # Its own file alone is collected in half the time of the whole suite.
    verdict = _try(mutant, mutant.test, f"{SUITE}.{mutant.test.partition('.')[0]}")
    if verdict.outcome != "killed":
        verdict = _try(mutant, mutant.clause, SUITE)
    return Verdict(mutant, verdict.outcome, verdict.test, verdict.reason, time.monotonic() - began)


def _try(mutant: Mutant, select: str, suite: str) -> Verdict:
    arguments = ("-p", _PLUGIN, f"--unigrad-mutant={mutant.name}")
    with tempfile.TemporaryDirectory(prefix="unigrad-mutant-") as folder:
        (session,) = check(
            [Target(mutation.BACKEND, arguments=arguments)],
            Path(folder),
            select=select,
            suite=suite,
            limits=Limits(test_s=_LIMIT_S, backend_s=_LIMIT_S),
        )
    return _judge(mutant, session)


def _judge(mutant: Mutant, session: Session) -> Verdict:
    if session.status != "complete":
        return Verdict(mutant, "error", reason=f"{session.status}: {session.message}")
    ran = [result for result in session.results if result.ran]
    if not ran:
        return Verdict(mutant, "survived", reason=f"no test ran for {session.selection}")
    for result in ran:
        if result.outcome != "failed":
            continue
        if mutant.clause not in result.clauses:
            return Verdict(mutant, "error", result.id, f"{result.id} does not name the clause {mutant.clause}")
        if result.reason.startswith(_OWN_FAULTS):
            return Verdict(mutant, "error", result.id, f"the mutant itself is at fault: {result.reason}")
        return Verdict(mutant, "killed", result.id, result.reason)
    return Verdict(mutant, "survived", reason=f"{len(ran)} tests of {session.selection} passed")

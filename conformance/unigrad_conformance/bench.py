"""`unigrad bench`: overhead, memory and time against the framework's own idiom, each figure a ratio within one run."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from unigrad_conformance import bench_cases, bench_engines, bench_regions, quiet
from unigrad_conformance.bench_cases import Figure

__all__ = ["main"]

FILE_WIDTH = 160
"""Columns of a table that goes into a file, where there is no window to fit."""
CASES = (*bench_cases.CASES, *bench_regions.CASES, *bench_engines.CASES)


def main(names: Sequence[str], pairs: int = 60, warmups: int = 10, only: str = "") -> tuple[int, dict[str, Any]]:
    """Measure one or more backends and print a table each.

    Parameters
    ----------
    names
        Names of backends; one at a time is measured, each should have a process of its own.
    pairs, warmups
        Interleaved pairs that count, and those before them that do not; what takes long has fewer, which its row says.
    only
        Part of the names of the cases to run; all if empty.

    Returns
    -------
    tuple
        0 if every figure is within its bound, 1 if one is not, 2 if nothing was measured; and the figures as data for JSON.
    """
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_WIDTH)
    _keep_freed_memory()
    results: dict[str, Any] = {"machine": _machine(), "pairs": pairs, "backends": {}}
    missed = measured = 0
    for name in names:
        backend = quiet.load(name)
        chosen = [case for case in CASES if only in case.__name__]
        figures: list[Figure] = []
        seconds: dict[str, float] = {}
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(name, total=len(chosen))
            for case in chosen:
                progress.update(task, description=f"{name}: {case.__name__.replace('_', ' ')}")
                start = time.perf_counter()
                figures += case(bench_cases.Setting(backend, pairs, warmups))
                seconds[case.__name__] = round(time.perf_counter() - start, 1)
                progress.advance(task)
        console.print(_table(f"{name} {backend.version}", figures))
        missed += sum(figure.ok is False for figure in figures)
        measured += len(figures)
        results["backends"][name] = {
            "version": backend.version,
            "seconds": seconds,
            "figures": [asdict(figure) for figure in figures],
        }
    if not measured:
        console.print("nothing was measured")
        return 2, results
    return 1 if missed else 0, results


def _keep_freed_memory() -> None:
    """Have glibc keep what is freed, where it is the allocator.

    Else a step that frees its last block at the end of the heap gives pages back and faults for them anew in the next, and
    one that keeps a gradient there until then does not: a difference of several per cent that neither of two idioms has made.
    """
    trim_threshold, mmap_threshold = -1, -3  # names in malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 2**25)  # the most that glibc takes


def _machine() -> dict[str, Any]:
    return {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}


def _table(title: str, figures: Sequence[Figure]) -> Table:
    table = Table(title=title)
    for column, justify in (
        ("what", "left"),
        ("kind", "left"),
        ("of", "right"),
        ("median", "right"),
        ("quartiles", "right"),
        ("at most", "right"),
        ("", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]  # rich names the two values by a literal type
    for figure in figures:
        spread = f"{figure.low:.3f} .. {figure.high:.3f}" if figure.low != figure.high else ""
        verdict = {True: "ok", False: "MISSED", None: ""}[figure.ok]
        bound = f"{figure.bound:.2f}" if figure.bound is not None else "-"
        table.add_row(figure.what, figure.kind, str(figure.pairs), f"{figure.median:.3f}", spread, bound, verdict)
    return table

"""Peak memory of one step: the high-water mark of a fresh process above its level just before the step."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import unigrad
from unigrad_conformance import quiet
from unigrad_conformance.bench_runs import last_lines

__all__ = ["DEEP", "DROPPING", "WIDE", "measure"]

DEEP = (24, 512, 2048, 4)
"""Layers, width, batch and regions of the deep stack."""
WIDE = (12, 64, 4096)
"""Layers, width and batch of the stack that is run in parts."""
DROPPING = (12, 512, 4096, 0.5)
"""Layers, width, batch and rate of the stack with dropout that is run in parts."""
RUNS = 2
"""Processes of each case; they run side by side, since what else the machine does is no matter for a peak."""

# With glibc's defaults freed memory stays with the process and hides what a step needs.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


@functools.cache
def measure(backend: str, case: str, threads: int | None = None) -> tuple[int, ...]:
    """Return the peak of one step in bytes, measured in fresh processes.

    Parameters
    ----------
    backend
        Name of the backend.
    case
        ``"deep" "checkpoint" "recompute" "wide" "dropping"``; ``"wide"`` and ``"dropping"`` may be followed by the number of parts in
        which a microbatch runs them. With ``"compiled "`` in front the step is compiled.
    threads
        Inter-op threads, for a backend whose module ``bench`` has ``threads``.

    Returns
    -------
    tuple
        Bytes, of each process.

    Raises
    ------
    UnsupportedError
        Where the system has no ``/proc``.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise unigrad.UnsupportedError("peaks are read from /proc/self/status, which this system does not have")
    variables = dict(ALLOCATOR)
    if threads is not None:
        variables |= _native(quiet.load(backend)).threads(threads)
    return tuple(
        int(line) for line in last_lines([["unigrad_conformance.bench_peak", backend, case]] * RUNS, variables)
    )


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def _native(backend: unigrad.Backend) -> Any:
    return importlib.import_module(f"{backend.spec.package}.bench")


def _sizes(sizes: tuple[Any, ...], small: bool) -> tuple[Any, ...]:
    return (sizes[0], 8, 64, *sizes[3:]) if small else sizes


def _step(backend: unigrad.Backend, case: str, small: bool = False) -> Callable[[], None]:
    native = _native(backend)
    compiled, case = case.startswith("compiled "), case.removeprefix("compiled ")
    if case in ("deep", "checkpoint", "recompute"):
        layers, width, batch, regions = _sizes(DEEP, small)
        segments = [native.stack(layers // regions, width, "tanh") for _ in range(regions)]
        parameters = list(unigrad.wrap(native.chain(segments)).parameters.values())
        if case == "checkpoint":
            model = native.chain([unigrad.checkpoint(segment) for segment in segments])
        else:
            model = native.recompute(segments) if case == "recompute" else native.chain(segments)
    else:
        name, _, parts = case.partition(" ")
        layers, width, batch, *dropout = _sizes(DROPPING if name == "dropping" else WIDE, small)
        model = native.stack(layers, width, "relu", *dropout)
        parameters = list(unigrad.wrap(model).parameters.values())
        if parts:
            model = unigrad.microbatch(model, size=batch // int(parts))
    x = native.data(batch, width)
    made: Callable[[], None]
    made = native.compiled(native.gradients(model, parameters), x) if compiled else native.step(model, parameters, x)
    return made


def _main() -> None:
    backend, case = quiet.load(sys.argv[1]), sys.argv[2]
    step = _step(backend, case)
    # Of memory that a framework never gives back a second step of the same size would take none.
    warm = _step(backend, case, small=True) if getattr(_native(backend), "KEEPS_MEMORY", False) else step
    warm()
    warm()
    Path("/proc/self/clear_refs").write_text("5")
    level = _memory("VmRSS")
    step()
    print(max(_memory("VmHWM") - level, 1))


if __name__ == "__main__":
    _main()

"""Peak memory of one step: the high-water mark of a fresh process above its level just before the step."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import unigrad
from unigrad_conformance import quiet

__all__ = ["DEEP", "measure"]

DEEP = (24, 512, 2048, 4)
"""Layers, width, batch and regions of the deep stack."""
WIDE = (12, 64, 4096)
"""Layers, width and batch of the stack that is run in parts."""

# With glibc's defaults freed memory stays with the process and hides what a step needs.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def measure(backend: str, case: str) -> int:
    """Return the peak of one step in bytes, measured in a fresh process.

    Parameters
    ----------
    backend
        Name of the backend.
    case
        ``"deep" "checkpoint" "recompute" "wide"`` or ``"parts<N>"``; with ``"compiled "`` in front the step is compiled.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    UnsupportedError
        Where the system has no ``/proc``.
    """
    if not Path("/proc/self/clear_refs").exists():
        raise unigrad.UnsupportedError("peaks are read from /proc/self/status, which this system does not have")
    run = subprocess.run(
        [sys.executable, "-m", "unigrad_conformance.bench_peak", backend, case],
        env=os.environ | ALLOCATOR,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout.split()[-1])


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def _step(backend: unigrad.Backend, case: str) -> Callable[[], None]:
    native: Any = importlib.import_module(f"{backend.spec.package}.bench")
    compiled, case = case.startswith("compiled "), case.removeprefix("compiled ")

    def step(model: Any, parameters: list[Any], x: Any) -> Callable[[], None]:
        made: Callable[[], None]
        made = (
            native.compiled(native.gradients(model, parameters), x) if compiled else native.step(model, parameters, x)
        )
        return made

    if case in ("deep", "checkpoint", "recompute"):
        layers, width, batch, regions = DEEP
        segments = [native.stack(layers // regions, width, "tanh") for _ in range(regions)]
        parameters = list(unigrad.wrap(native.chain(segments)).parameters.values())
        if case == "checkpoint":
            model = native.chain([unigrad.checkpoint(segment) for segment in segments])
        else:
            model = native.recompute(segments) if case == "recompute" else native.chain(segments)
        return step(model, parameters, native.data(batch, width))
    layers, width, batch = WIDE
    model = native.stack(layers, width, "relu")
    parameters = list(unigrad.wrap(model).parameters.values())
    if case.startswith("parts"):
        model = unigrad.microbatch(model, size=batch // int(case.removeprefix("parts")))
    return step(model, parameters, native.data(batch, width))


def _main() -> None:
    step = _step(quiet.load(sys.argv[1]), sys.argv[2])
    step()
    step()
    Path("/proc/self/clear_refs").write_text("5")
    level = _memory("VmRSS")
    step()
    print(max(_memory("VmHWM") - level, 1))


if __name__ == "__main__":
    _main()

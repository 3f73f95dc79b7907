"""What a collector costs where the framework's own backward runs: in one process, and in two that share a model."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import unigrad
from unigrad_conformance import quiet
from unigrad_conformance.bench_cases import Figure, Setting, collector_step
from unigrad_conformance.bench_runs import last_lines

__all__ = ["CASES"]

SHAPE = (20, 256, 512)
"""Layers, width and batch."""
PROCESSES = 2


def native_engine(setting: Setting) -> list[Figure]:
    """Collector step against the native step of a model that only the native engine serves."""
    native = setting.native
    if not hasattr(native, "hooked"):
        return []
    layers, width, batch = SHAPE
    block = unigrad.wrap(native.hooked(native.stack(layers, width, "relu")))
    x = native.data(batch, width)
    theirs = native.step(block.native, list(block.parameters.values()), x)
    what = f"collector step / native step, native engine, {layers} layers {width} wide, batch {batch}"
    return [setting.compare(what, collector_step(block, native, x), theirs, setting.bound("native engine"))]


def several_processes(setting: Setting) -> list[Figure]:
    """Collector step against the native step of a model whose gradients two processes average."""
    if not hasattr(setting.native, "averaged"):
        return []
    with tempfile.TemporaryDirectory() as folder:
        run = ["unigrad_conformance.bench_engines", setting.backend.spec.name, folder]
        numbers = [str(setting.pairs), str(setting.warmups)]
        lines = last_lines([[*run, str(rank), *numbers] for rank in range(PROCESSES)], {})
    figure = json.loads(lines[0])
    del figure["ok"]
    return [Figure(**figure)]


CASES: tuple[Callable[[Setting], list[Figure]], ...] = (native_engine, several_processes)


def _main(name: str, folder: str, rank: str, pairs: str, warmups: str) -> None:
    """Measure in one of the processes, all of which do the same steps in the same order."""
    setting = Setting(quiet.load(name), int(pairs), int(warmups), budget=math.inf, sample=0)
    native: Any = setting.native
    layers, width, batch = SHAPE
    with native.processes(folder, int(rank), PROCESSES):
        block = unigrad.wrap(native.averaged(native.stack(layers, width, "relu")))
        x = native.data(batch, width)
        theirs = native.step(block.native, list(block.parameters.values()), x)
        what = f"collector step / native step, {PROCESSES} processes, {layers} layers {width} wide, batch {batch} each"
        figure = setting.compare(what, collector_step(block, native, x), theirs, setting.bound("several processes"))
    print(json.dumps(asdict(figure)))


if __name__ == "__main__":
    _main(*sys.argv[1:])

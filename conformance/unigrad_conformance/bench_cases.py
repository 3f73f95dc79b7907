"""What `unigrad bench` measures."""

from __future__ import annotations

import gc
import importlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import unigrad
from unigrad.protocols import Backend, Capability
from unigrad_conformance import bench_peak

__all__ = ["CASES", "Figure", "Setting"]


@dataclass(frozen=True)
class Figure:
    """One measured ratio.

    Parameters
    ----------
    what
        What was divided by what.
    kind
        ``"time"``, ``"kept bytes"`` or ``"peak"`` (high-water mark of a fresh process above its level before the step).
    median, low, high
        Median and quartiles of the ratios of the pairs.
    bound
        The figure to reach; None where there is none.
    """

    what: str
    kind: str
    median: float
    low: float
    high: float
    bound: float | None = None
    ok: bool | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", None if self.bound is None else self.median <= self.bound)


@dataclass(frozen=True)
class Setting:
    """A backend and how often to measure."""

    backend: Backend
    pairs: int
    warmups: int

    @property
    def native(self) -> Any:
        """The backend's module ``bench`` (see ``unigrad.samples.Bench``)."""
        return importlib.import_module(f"{self.backend.spec.package}.bench")

    def bound(self, figure: str) -> float | None:
        """Return the bound that the backend sets itself for a figure against its framework's own idiom."""
        bounds: dict[str, float] = getattr(self.native, "BOUNDS", {})
        return bounds.get(figure)

    def compare(self, what: str, ours: Callable[[], Any], theirs: Callable[[], Any], bound: float | None) -> Figure:
        """Time two functions in turn and return the ratio pair by pair; the order within a pair alternates."""
        for _ in range(self.warmups):
            ours()
            theirs()
        ratios = []
        gc.collect()
        gc.disable()
        try:
            for index in range(self.pairs):
                first, second = (ours, theirs) if index % 2 else (theirs, ours)
                one, two = _seconds(first), _seconds(second)
                ratios.append(one / two if index % 2 else two / one)
        finally:
            gc.enable()
        return _figure(what, "time", ratios, bound)


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _figure(what: str, kind: str, ratios: Sequence[float], bound: float | None) -> Figure:
    if len(ratios) == 1:
        return Figure(what, kind, ratios[0], ratios[0], ratios[0], bound)
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Figure(what, kind, median, low, high, bound)


def collector_step(block: unigrad.Block, native: Any, x: Any) -> Callable[[], None]:
    """Return a step: open, forward, backward, read each gradient once, close."""

    def step() -> None:
        with unigrad.GradientCollector(block) as collector:
            collector.backward(native.loss(block(x)))
            for _ in collector.gradients.values():
                pass

    return step


def step_overhead(setting: Setting) -> list[Figure]:
    """Collector step against the native step."""
    native = setting.native
    figures = []
    for layers, width, batch, size in ((20, 256, 512, "large"), (2, 8, 64, "small")):
        block = unigrad.wrap(native.stack(layers, width, "relu"))
        x = native.data(batch, width)
        theirs = native.step(block.native, list(block.parameters.values()), x)
        what = f"collector step / native step, {layers} layers {width} wide, batch {batch}"
        bound = setting.bound(f"step, {size}")
        figures.append(setting.compare(what, collector_step(block, native, x), theirs, bound))
    return figures


def input_gradients(setting: Setting) -> list[Figure]:
    """Input gradients only against the native way."""
    native = setting.native
    block = unigrad.wrap(native.stack(20, 256, "relu"))
    x = native.data(512, 256)

    def ours() -> None:
        with unigrad.GradientCollector(block, parameters=False) as collector:
            watched = collector.watch(x, "x")
            collector.backward(native.loss(block(watched)))
            collector.input_gradients["x"]

    return [
        setting.compare(
            "input gradients only / native, 20 layers 256 wide, batch 512",
            ours,
            native.input_step(block.native, x),
            setting.bound("input"),
        )
    ]


def unrelated_arrays(setting: Setting) -> list[Figure]:
    """Compare opening and zeroing with many arrays alive that are none of the block's."""
    native = setting.native
    block = unigrad.wrap(native.stack(2, 8, "relu"))

    def open_and_zero() -> None:
        for _ in range(20):
            with unigrad.GradientCollector(block) as collector:
                collector.zero()

    ratios: list[float] = []
    rounds = 6  # few and many in turn, so that a machine that slows down slows both
    for _ in range(rounds):
        timings = [
            _with_unrelated(native, count, open_and_zero, setting.warmups, -(-setting.pairs // rounds))
            for count in (100, 100_000)
        ]
        ratios += [many / few for few, many in zip(*timings, strict=True)]
    return [_figure("opening and zeroing with 100,000 unrelated arrays / with 100", "time", ratios, 1.2)]


def _with_unrelated(native: Any, count: int, function: Callable[[], None], warmups: int, times: int) -> list[float]:
    """Time a function while many foreign leaves are alive, half of them parameters of a block with an open collector."""
    arrays = native.unrelated(count)
    other = unigrad.wrap({f"p{index}": array for index, array in enumerate(arrays[: count // 2])})
    with unigrad.GradientCollector(other):
        for _ in range(warmups):
            function()
        gc.collect()
        gc.disable()
        try:
            return [_seconds(function) for _ in range(times)]
        finally:
            gc.enable()


def checkpoint_cost(setting: Setting) -> list[Figure]:
    """Checkpoint against the framework's own recompute, and the cost of its value check."""
    native = setting.native
    layers, width, batch, regions = bench_peak.DEEP
    segments = [native.stack(layers // regions, width, "tanh") for _ in range(regions)]
    x = native.data(batch, width)
    plain = native.chain(segments)
    parameters = list(unigrad.wrap(plain).parameters.values())
    ours = native.step(native.chain([unigrad.checkpoint(segment) for segment in segments]), parameters, x)
    unchecked = native.step(
        native.chain([unigrad.checkpoint(segment, verify=False) for segment in segments]), parameters, x
    )
    shape = f"{layers} dense layers {width} wide with tanh, batch {batch}, {regions} regions"
    few = Setting(setting.backend, max(setting.pairs // 6, 1), max(setting.warmups // 5, 1))
    figures = [few.compare(f"checkpoint with / without the value check, {shape}", ours, unchecked, None)]
    own = native.recompute(segments)
    if own is not None:
        theirs = native.step(own, parameters, x)
        figures.append(
            few.compare(f"checkpoint / native recompute, {shape}", ours, theirs, setting.bound("checkpoint, time"))
        )
        figures.append(
            _peaks(
                setting,
                f"checkpoint / native recompute, {shape}",
                "checkpoint",
                "recompute",
                setting.bound("checkpoint, peak"),
            )
        )
    figures.append(_peaks(setting, f"checkpoint / plain, {shape}", "checkpoint", "deep", None))
    return figures


def compiled_steps(setting: Setting) -> list[Figure]:
    """Compare collector and checkpoint inside a compiled function with the framework's own compiled step."""
    native = setting.native
    if Capability.COMPILED_STEP not in setting.backend.spec.capabilities or not hasattr(native, "compiled"):
        return []
    block = unigrad.wrap(native.stack(20, 256, "relu"))
    x = native.data(512, 256)

    def collected(x: Any) -> list[Any]:
        with unigrad.GradientCollector(block) as collector:
            collector.backward(native.loss(block(x)))
            return list(collector.gradients.values())

    ours = native.compiled(collected, x)
    theirs = native.compiled(native.gradients(block.native, list(block.parameters.values())), x)
    what = "compiled collector step / compiled native step, 20 layers 256 wide, batch 512"
    figures = [setting.compare(what, ours, theirs, setting.bound("step, large"))]
    layers, width, batch, regions = bench_peak.DEEP
    segments = [native.stack(layers // regions, width, "tanh") for _ in range(regions)]
    parameters = list(unigrad.wrap(native.chain(segments)).parameters.values())
    x = native.data(batch, width)
    rerun = native.chain([unigrad.checkpoint(segment) for segment in segments])
    few = Setting(setting.backend, max(setting.pairs // 6, 1), max(setting.warmups // 5, 1))
    shape = f"{layers} dense layers {width} wide with tanh, batch {batch}, {regions} regions"
    ours = native.compiled(native.gradients(rerun, parameters), x)
    own = native.recompute(segments)
    if own is not None:
        theirs = native.compiled(native.gradients(own, parameters), x)
        what = f"compiled checkpoint / native recompute, {shape}"
        figures.append(few.compare(what, ours, theirs, setting.bound("checkpoint, time")))
        bound = setting.bound("checkpoint, peak")
        figures.append(_peaks(setting, what, "compiled checkpoint", "compiled recompute", bound))
    figures.append(
        _peaks(setting, f"compiled checkpoint / plain, {shape}", "compiled checkpoint", "compiled deep", None)
    )
    return figures


def _peaks(setting: Setting, what: str, ours: str, theirs: str, bound: float | None) -> Figure:
    name = setting.backend.spec.name
    ratios = [bench_peak.measure(name, ours) / bench_peak.measure(name, theirs) for _ in range(3)]
    return _figure(what, "peak", ratios, bound)


def _kept(block: unigrad.Block, native: Any, function: Callable[[Any], Any], x: Any) -> int:
    with unigrad.kept_bytes(block) as meter:
        output = function(x)
    del output
    return meter.bytes


def kept_by_checkpoint(setting: Setting) -> list[Figure]:
    """Bytes kept by one checkpoint against the plain run."""
    native = setting.native
    if Capability.KEPT_BYTES not in setting.backend.spec.capabilities:
        return []
    model = native.stack(12, 64, "relu")
    block, x = unigrad.wrap(model), native.data(4096, 64)
    ratio = _kept(block, native, unigrad.checkpoint(model), x) / _kept(block, native, model, x)
    return [_figure("one checkpoint / plain, 12 x (dense 64, relu), batch 4096", "kept bytes", [ratio], 0.10)]


def microbatch_cost(setting: Setting) -> list[Figure]:
    """Bytes, time and peak of microbatch for several numbers of parts."""
    native = setting.native
    model = native.stack(12, 64, "relu")
    block, x = unigrad.wrap(model), native.data(4096, 64)
    shape = "12 x (dense 64, relu), batch 4096"
    plain_step = native.step(model, list(block.parameters.values()), x)
    figures = []
    for parts in (1, 2, 4, 8, 16):
        run = unigrad.microbatch(model, size=4096 // parts)
        if Capability.KEPT_BYTES in setting.backend.spec.capabilities:
            ratio = _kept(block, native, run, x) / _kept(block, native, model, x)
            figures.append(
                _figure(
                    f"microbatch {parts} parts / plain, {shape}", "kept bytes", [ratio], 0.10 if parts == 16 else None
                )
            )
        step = native.step(run, list(block.parameters.values()), x)
        figures.append(setting.compare(f"microbatch {parts} parts / plain, {shape}", step, plain_step, None))
        figures.append(
            _peaks(
                setting,
                f"microbatch {parts} parts / plain, {shape}",
                f"parts{parts}",
                "wide",
                0.35 if parts == 8 else None,
            )
        )
    return figures


def usage_walk(setting: Setting) -> list[Figure]:
    """Compare the walk that finds what a loss reaches, with the backward that follows."""
    native = setting.native
    tape = setting.backend.tape
    figures = []
    for width in (4, 64):
        block = unigrad.wrap(native.stack(1000, width, None))
        loss = native.loss(block(native.data(64, width)))
        leaves = list(block.parameters.values())
        ratios: list[float] = []
        for _ in range(10):
            start = time.perf_counter()
            graph = tape.trace([loss])
            middle = time.perf_counter()
            tape.vjp(graph, [None], leaves, retain=True, create=False)
            ratios.append((middle - start) / (time.perf_counter() - middle))
        figures.append(_figure(f"usage walk / backward, 1,000 layers {width} wide, batch 64", "time", ratios, None))
    return figures


def import_time(setting: Setting) -> list[Figure]:
    """Compare importing unigrad with importing NumPy, which it needs."""
    ratios = []
    for _ in range(7):
        one, two = (
            _seconds(lambda what=what: subprocess.run([sys.executable, "-c", f"import {what}"], check=True))  # type: ignore[misc]
            for what in ("unigrad", "numpy")
        )
        ratios.append(one / two)
    return [_figure("import unigrad / import numpy, whole process", "time", ratios, None)]


CASES: tuple[Callable[[Setting], list[Figure]], ...] = (
    step_overhead,
    input_gradients,
    unrelated_arrays,
    checkpoint_cost,
    compiled_steps,
    kept_by_checkpoint,
    microbatch_cost,
    usage_walk,
    import_time,
)

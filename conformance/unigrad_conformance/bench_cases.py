"""What `unigrad bench` measures of collectors, and how it measures times."""

from __future__ import annotations

import gc
import importlib
import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import unigrad
from unigrad.protocols import Backend

__all__ = ["CASES", "Figure", "Setting", "collector_step", "summary"]

BUDGET_S = 30.0
"""Seconds after which a figure has its last pair."""
LEAST = 6
"""Pairs that a figure has even so."""
SAMPLE_S = 0.004
"""Seconds of one side of a pair at least: a shorter step is run several times in it, as training runs it."""


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
    pairs
        How many ratios it is the median of.
    """

    what: str
    kind: str
    median: float
    low: float
    high: float
    bound: float | None = None
    pairs: int = 1
    ok: bool | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", None if self.bound is None else self.median <= self.bound)


@dataclass(frozen=True)
class Setting:
    """A backend and how often to measure.

    Parameters
    ----------
    backend
        The backend.
    pairs, warmups
        Interleaved pairs that count, and those before them that do not.
    budget
        Seconds for one figure; after that it has fewer pairs than ``pairs``.
    sample
        Seconds that one side of a pair lasts at least, by running it several times.
    """

    backend: Backend
    pairs: int
    warmups: int
    budget: float = BUDGET_S
    sample: float = SAMPLE_S

    @property
    def native(self) -> Any:
        """The backend's module ``bench`` (see ``unigrad.samples.Bench``)."""
        return importlib.import_module(f"{self.backend.spec.package}.bench")

    def bound(self, figure: str) -> float | None:
        """Return the bound that the backend sets itself for a figure against its framework's own idiom."""
        bounds: dict[str, float] = getattr(self.native, "BOUNDS", {})
        return bounds.get(figure)

    def repeat(self, run: Callable[[], list[float]], times: int, least: int = LEAST) -> list[float]:
        """Return the ratios of several runs, of fewer if they take long."""
        ratios: list[float] = []
        deadline = time.perf_counter() + self.budget
        for index in range(times):
            if index >= least and time.perf_counter() > deadline:
                break
            ratios += run()
        return ratios

    def calls(self, seconds: Sequence[float]) -> int:
        """Return how many calls make a sample, of what has taken these times."""
        shortest = max(min(seconds, default=math.inf), time.get_clock_info("perf_counter").resolution)
        return max(1, math.ceil(self.sample / shortest))

    def compare(self, what: str, ours: Callable[[], Any], theirs: Callable[[], Any], bound: float | None) -> Figure:
        """Time two functions in turn and return the ratio pair by pair; the order within a pair alternates."""
        warm = replace(self, budget=self.budget / 4)
        calls = self.calls(warm.repeat(lambda: [_seconds(ours), _seconds(theirs)], self.warmups, 1))
        first = itertools.cycle((theirs, ours))

        def pair() -> list[float]:
            if next(first) is ours:
                return [_seconds(ours, calls) / _seconds(theirs, calls)]
            divisor = _seconds(theirs, calls)
            return [_seconds(ours, calls) / divisor]

        gc.collect()
        gc.disable()
        try:
            return summary(what, "time", self.repeat(pair, self.pairs), bound)
        finally:
            gc.enable()


def _seconds(function: Callable[[], Any], calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


def summary(what: str, kind: str, ratios: Sequence[float], bound: float | None) -> Figure:
    """Return the figure that several ratios give."""
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [*ratios] * 3
    return Figure(what, kind, median, low, high, bound, len(ratios))


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
        with unigrad.GradientCollector(block) as collector:
            collector.zero()

    rounds = 3
    # samples of five times the length: what is alive differs between stretches of time, not from one sample to the next
    longer = replace(setting, sample=5 * setting.sample)
    calls = longer.calls([_seconds(open_and_zero) for _ in range(10)])

    def once() -> list[float]:
        # Few arrays before and after many: a machine that slows down slows both, and many are made once.
        before, many, after = (
            _with_unrelated(native, count, open_and_zero, calls, setting.warmups, -(-setting.pairs // rounds))
            for count in (100, 100_000, 100)
        )
        return [two / ((one + three) / 2) for one, two, three in zip(before, many, after, strict=True)]

    ratios = setting.repeat(once, rounds, least=1)
    what = "opening and zeroing with 100,000 unrelated arrays / with 100"
    return [summary(what, "time", ratios, setting.bound("unrelated"))]


def _with_unrelated(
    native: Any, count: int, function: Callable[[], None], calls: int, warmups: int, times: int
) -> list[float]:
    """Time a function while many foreign leaves are alive, half of them parameters of a block with an open collector."""
    arrays = native.unrelated(count)
    other = unigrad.wrap({f"p{index}": array for index, array in enumerate(arrays[: count // 2])})
    with unigrad.GradientCollector(other):
        for _ in range(warmups):
            _seconds(function, calls)
        gc.collect()
        gc.disable()
        try:
            return [_seconds(function, calls) for _ in range(times)]
        finally:
            gc.enable()


def usage_walk(setting: Setting) -> list[Figure]:
    """Compare the walk that finds what a loss reaches, with the backward that follows."""
    native = setting.native
    tape = setting.backend.tape
    figures = []
    for width in (4, 64):
        block = unigrad.wrap(native.stack(1000, width, None))
        leaves = list(block.parameters.values())
        with unigrad.GradientCollector(block, on_unused="ignore"):
            loss = native.loss(block(native.data(64, width)))

            def walk(loss: Any = loss, leaves: Any = leaves) -> list[float]:
                start = time.perf_counter()
                graph = tape.trace([loss])
                middle = time.perf_counter()
                tape.vjp(graph, [None], leaves, retain=True, create=False)
                return [(middle - start) / (time.perf_counter() - middle)]

            ratios = setting.repeat(walk, 10)
        figures.append(summary(f"usage walk / backward, 1,000 layers {width} wide, batch 64", "time", ratios, None))
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
    return [summary("import unigrad / import numpy, whole process", "time", ratios, None)]


CASES: tuple[Callable[[Setting], list[Figure]], ...] = (
    step_overhead,
    input_gradients,
    unrelated_arrays,
    usage_walk,
    import_time,
)

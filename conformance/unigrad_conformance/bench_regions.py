"""What `unigrad bench` measures of regions: checkpoint and microbatch, eager and in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance import bench_peak
from unigrad_conformance.bench_cases import Figure, Setting, summary

__all__ = ["CASES"]

INTER_OP_THREADS = (1, 2)
"""With how many each peak is measured, where a framework has them."""


def _peaks(setting: Setting, what: str, ours: str, theirs: str, bound: float | None) -> list[Figure]:
    figures = []
    for count in INTER_OP_THREADS if hasattr(setting.native, "threads") else (None,):
        one, two = (bench_peak.measure(setting.backend.spec.name, case, count) for case in (ours, theirs))
        ratios = [first / second for first, second in zip(one, two, strict=True)]
        threads = "" if count is None else f", inter-op threads: {count}"
        figures.append(summary(what + threads, "peak", ratios, bound))
    return figures


def _compiles(setting: Setting) -> bool:
    return Capability.COMPILED_STEP in setting.backend.spec.capabilities and hasattr(setting.native, "compiled")


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
    figures = [setting.compare(f"checkpoint with / without the value check, {shape}", ours, unchecked, None)]
    own = native.recompute(segments)
    if own is not None:
        what = f"checkpoint / native recompute, {shape}"
        theirs = native.step(own, parameters, x)
        figures.append(setting.compare(what, ours, theirs, setting.bound("checkpoint, time")))
        figures += _peaks(setting, what, "checkpoint", "recompute", setting.bound("checkpoint, peak"))
    what = f"checkpoint / plain, {shape}"
    return figures + _peaks(setting, what, "checkpoint", "deep", setting.bound("checkpoint / plain, peak"))


def compiled_steps(setting: Setting) -> list[Figure]:
    """Compare collector and checkpoint inside a compiled function with the framework's own compiled step."""
    native = setting.native
    if not _compiles(setting):
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
    shape = f"{layers} dense layers {width} wide with tanh, batch {batch}, {regions} regions"
    ours = native.compiled(native.gradients(rerun, parameters), x)
    own = native.recompute(segments)
    if own is not None:
        theirs = native.compiled(native.gradients(own, parameters), x)
        what = f"compiled checkpoint / native recompute, {shape}"
        figures.append(setting.compare(what, ours, theirs, setting.bound("checkpoint, time")))
        bound = setting.bound("checkpoint, peak")
        figures += _peaks(setting, what, "compiled checkpoint", "compiled recompute", bound)
    what, bound = f"compiled checkpoint / plain, {shape}", setting.bound("compiled checkpoint / plain, peak")
    return figures + _peaks(setting, what, "compiled checkpoint", "compiled deep", bound)


def _kept(block: unigrad.Block, native: Any, function: Callable[[Any], Any], x: Any) -> int:
    # in a collector: some frameworks record nothing without one
    with unigrad.GradientCollector(block), unigrad.kept_bytes(block) as meter:
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
    return [summary("one checkpoint / plain, 12 x (dense 64, relu), batch 4096", "kept bytes", [ratio], 0.10)]


def microbatch_cost(setting: Setting) -> list[Figure]:
    """Bytes, time and peak of microbatch for several numbers of parts."""
    native = setting.native
    layers, width, batch = bench_peak.WIDE
    model = native.stack(layers, width, "relu")
    block, x = unigrad.wrap(model), native.data(batch, width)
    shape = f"{layers} x (dense {width}, relu), batch {batch}"
    plain_step = native.step(model, list(block.parameters.values()), x)
    figures = []
    for parts in (1, 2, 4, 8, 16):
        run = unigrad.microbatch(model, size=batch // parts)
        what = f"microbatch {parts} parts / plain, {shape}"
        if Capability.KEPT_BYTES in setting.backend.spec.capabilities:
            ratio = _kept(block, native, run, x) / _kept(block, native, model, x)
            figures.append(summary(what, "kept bytes", [ratio], 0.10 if parts == 16 else None))
        step = native.step(run, list(block.parameters.values()), x)
        figures.append(setting.compare(what, step, plain_step, None))
        bound = setting.bound("microbatch, peak") if parts == 8 else None
        figures += _peaks(setting, what, f"wide {parts}", "wide", bound)
    return figures


def microbatch_with_dropout(setting: Setting) -> list[Figure]:
    """Peak of microbatch where each part draws random numbers."""
    layers, width, batch, _ = bench_peak.DROPPING
    what = f"microbatch 16 parts / plain, {layers} x (dense {width}, relu, dropout), batch {batch}"
    bound = setting.bound("microbatch with dropout, peak")
    figures = []
    for how in ("", "compiled ") if _compiles(setting) else ("",):
        figures += _peaks(setting, how + what, f"{how}dropping 16", f"{how}dropping", bound)
    return figures


CASES: tuple[Callable[[Setting], list[Figure]], ...] = (
    checkpoint_cost,
    compiled_steps,
    kept_by_checkpoint,
    microbatch_cost,
    microbatch_with_dropout,
)

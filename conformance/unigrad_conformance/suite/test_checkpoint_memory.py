"""Checkpoint: after the forward only inputs, outputs, one copy of the buffers and random state are kept."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.suite.problems import array, dense, to_numpy
from unigrad_conformance.suite.regions import total

# Random state of the framework, of Python and of NumPy (a few thousand bytes each) and small change; an activation
# of the models here has 512 * 64 * 4 bytes.
SMALL = 32 * 1024
ACTIVATION = 512 * 64 * 4


def _probing(samples, probes, width=64):
    """Return a model of four inner activations that leaves a probe of each in ``probes``."""

    def forward(self, x):
        for name in ("a", "b", "c", "d"):
            x = samples.operations.tanh(getattr(self, name)(x))
            probes.append(samples.storage_alive(x))
        return self.last(x)

    layers = {name: dense(samples, width, width, seed=index) for index, name in enumerate("abcd")}
    return samples.model(forward, layers={**layers, "last": dense(samples, width, width, seed=9)})


def _alive(probes):
    return [probe() for probe in probes]


@pytest.mark.clause("C4")
def test_plain_run_keeps_its_inner_activations(samples):
    """The control: without this the next tests could not fail."""
    probes: list[Any] = []
    block = unigrad.wrap(_probing(samples, probes))
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, block(samples.tensor(array(4, 64))))
        assert _alive(probes) == [True] * 4
        collector.backward(loss)


@pytest.mark.clause("C4")
def test_inner_activations_are_dead_after_forward(samples):
    """By counting references alone, without the garbage collector."""
    probes: list[Any] = []
    block = unigrad.wrap(_probing(samples, probes))
    gc.collect()
    gc.disable()
    try:
        with unigrad.GradientCollector(block) as collector:
            loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(4, 64))))
            assert _alive(probes) == [False] * 4
            collector.backward(loss, retain_graph=True)
            assert _alive(probes) == [False] * 8, "the recomputed activations outlive a backward that retains the graph"
            collector.backward(loss)
            assert _alive(probes) == [False] * 12
    finally:
        gc.enable()


@pytest.mark.clause("C4", "C5")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_input_of_an_inner_region_is_dead_after_forward(samples):
    """For the outer region it is an inner activation, whatever the inner one would keep by itself."""
    probes: list[Any] = []

    def forward(self, x):
        x = samples.operations.tanh(self.first(x))
        probes.append(samples.storage_alive(x))
        return self.inner(x)

    layers = {"first": dense(samples, 8, 8), "inner": unigrad.checkpoint(dense(samples, 8, 8, seed=1))}
    block = unigrad.wrap(samples.model(forward, layers=layers))
    gc.collect()
    gc.disable()
    try:
        with unigrad.GradientCollector(block) as collector:
            loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(4, 8))))
            assert _alive(probes) == [False]
            collector.backward(loss)
            assert not any(_alive(probes))
    finally:
        gc.enable()


@pytest.mark.clause("C4", "G15")
def test_backward_that_asks_for_a_part_leaves_nothing(samples):
    """Only the last layer is collected, so that most of what the recompute made is never asked for."""
    probes: list[Any] = []
    block = unigrad.wrap(_probing(samples, probes))
    last = {"weight": block.parameters["last.weight"]}
    with unigrad.GradientCollector(last) as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(4, 64))))
        collector.backward(loss, retain_graph=True)
        assert list(collector.gradients) == ["weight"]
        assert _alive(probes) == [False] * 8
        collector.backward(loss)


@pytest.mark.clause("C4", "G15")
def test_backward_that_never_runs_leaves_nothing(samples, backend):
    probes: list[Any] = []
    block = unigrad.wrap(_probing(samples, probes))
    with unigrad.GradientCollector(block, on_unused="ignore"):
        x = samples.tensor(array(4, 64))
        y = unigrad.checkpoint(block)(x)
        loss = total(samples, y)
        probes += [samples.storage_alive(y), samples.storage_alive(x)]
        del loss, y, x
        gc.collect()
        # A tape that goes as a whole keeps what it recorded, and so the input of the region, until it goes.
        whole_tape = backend.spec.guarantees.get(Guarantee.INDEPENDENT_RELEASE, "kept") != "kept"
        assert not any(_alive(probes[:-1] if whole_tape else probes))
    gc.collect()
    assert not any(_alive(probes))


@pytest.mark.clause("C4", "G15")
def test_failing_recompute_leaves_no_activations(samples):
    probes: list[Any] = []
    calls: list[None] = []
    inner = _probing(samples, probes)

    def forward(self, x):
        y = self.inner(x)
        calls.append(None)
        if len(calls) > 1:
            raise ZeroDivisionError
        return y

    block = unigrad.wrap(samples.model(forward, layers={"inner": inner}))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(4, 64))))
        with contextlib.suppress(ZeroDivisionError):
            collector.backward(loss)
        gc.collect()
        assert not any(_alive(probes))


@pytest.mark.clause("C4")
def test_chained_regions_keep_only_their_borders(samples):
    probes: list[Any] = []
    blocks = [unigrad.wrap(_probing(samples, probes)) for _ in range(3)]
    borders = []
    with unigrad.GradientCollector({f"b{index}": block for index, block in enumerate(blocks)}) as collector:
        x = samples.tensor(array(4, 64))
        for block in blocks:
            x = unigrad.checkpoint(block)(x)
            borders.append(samples.storage_alive(x))
        loss = total(samples, x)
        del x
        assert not any(_alive(probes))
        assert all(_alive(borders[:2]))  # the last one is needed by what follows, or not
        collector.backward(loss)
        del loss
        gc.collect()
        assert not any(_alive(probes + borders))


@pytest.mark.clause("C4")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_nested_regions_keep_nothing_inside(samples):
    probes: list[Any] = []
    inner = _probing(samples, probes)
    model = samples.layer(
        "sequential", layers=[unigrad.checkpoint(inner), dense(samples, 64, 64), samples.layer("tanh")]
    )
    block = unigrad.wrap(model)
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(4, 64))))
        assert not any(_alive(probes))
        collector.backward(loss)
        gc.collect()
        assert not any(_alive(probes))


@pytest.mark.clause("C4", "Y1")
@pytest.mark.needs(Capability.KEPT_BYTES)
def test_kept_bytes_of_a_region_are_its_outputs(samples, record):
    block = unigrad.wrap(_probing(samples, []))
    x = samples.tensor(array(512, 64))
    kept = {}
    for name, run in (("plain", block), ("checkpoint", unigrad.checkpoint(block))):
        with unigrad.GradientCollector(block, on_unused="ignore"), unigrad.kept_bytes(block) as meter:
            y = run(x)
        kept[name] = meter.bytes
        assert to_numpy(y).shape == (512, 64)
    assert kept["plain"] >= 5 * ACTIVATION
    assert ACTIVATION <= kept["checkpoint"] <= ACTIVATION + SMALL
    record("activations kept by a checkpoint", kept["checkpoint"] // ACTIVATION)


@pytest.mark.clause("C4", "Y1")
@pytest.mark.needs(Capability.KEPT_BYTES)
def test_kept_bytes_of_full_verification_are_one_copy_of_the_outputs_more(samples):
    block = unigrad.wrap(_probing(samples, []))
    x = samples.tensor(array(512, 64))
    with unigrad.GradientCollector(block, on_unused="ignore"), unigrad.kept_bytes(block) as meter:
        y = unigrad.checkpoint(block, verify="full")(x)
    assert meter.bytes <= 2 * ACTIVATION + SMALL
    del y


@pytest.mark.clause("C4", "C3")
@pytest.mark.needs(Capability.KEPT_BYTES)
def test_kept_bytes_hold_one_copy_of_the_buffers(samples):
    size = 200_000
    block = unigrad.wrap(
        samples.model(
            lambda self, x: samples.operations.tanh(x) * samples.operations.sum(self.table),
            buffers={"table": np.ones(size, "float32")},
        )
    )
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(4, 64)), name="x")
        with unigrad.kept_bytes(block) as meter:
            y = unigrad.checkpoint(block)(x)
    assert meter.bytes <= 4 * size + 4 * 64 * 4 + SMALL
    del y


@pytest.mark.clause("C5", "C4")
@pytest.mark.needs(Capability.KEPT_BYTES)
def test_no_grad_call_keeps_its_output_only(samples):
    block = unigrad.wrap(_probing(samples, []))
    x = samples.tensor(array(512, 64))
    with samples.no_grad(), unigrad.kept_bytes(block) as meter:
        y = unigrad.checkpoint(block)(x)
    assert meter.bytes <= ACTIVATION + SMALL
    del y

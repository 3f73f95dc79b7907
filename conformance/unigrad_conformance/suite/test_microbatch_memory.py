"""Memory of a microbatched call: one part's activations alive at a time, no copy of the input (clause M6)."""

from __future__ import annotations

import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.parts import deep, kept
from unigrad_conformance.suite.problems import array

pytestmark = pytest.mark.clause("M6")

ROWS, WIDTH = 256, 60
ACTIVATION = ROWS * WIDTH * 4
# What is no activation: losses, saved sizes, one snapshot of the random state a region.
SLACK = 16_384


@pytest.mark.needs(Capability.KEPT_BYTES)
@pytest.mark.parametrize("parts", [1, 2, 4, 8, 16])
def test_parts_keep_their_outputs_only(samples, parts):
    model, x = deep(samples, WIDTH), samples.tensor(array(ROWS, WIDTH, seed=99))
    block = unigrad.wrap(model)
    split = unigrad.microbatch(model, ROWS // parts)
    found = kept(block, lambda: split(x))
    # The joined output alone: no outputs of parts beside it, no input, nothing inside.
    assert ACTIVATION <= found <= ACTIVATION + parts * SLACK


@pytest.mark.needs(Capability.KEPT_BYTES)
def test_what_the_recompute_holds_falls_with_the_number_of_parts(samples):
    inner, x = deep(samples, WIDTH), samples.tensor(array(ROWS, WIDTH, seed=99))
    inner_block = unigrad.wrap(inner)
    meters = []

    def forward(self, x):
        with unigrad.kept_bytes(inner_block) as meter:
            y = self.inner(x)
        meters.append(meter)
        return y

    block = unigrad.wrap(samples.model(forward, layers={"inner": inner}))
    held = {}
    for parts in (1, 2, 4, 8, 16):
        split = unigrad.microbatch(block, ROWS // parts)
        split(x)  # the first call may look at the outputs in a run more
        meters.clear()
        with unigrad.GradientCollector(block) as collector:
            y = split(x)
            assert len(meters) == parts
            collector.backward(samples.operations.sum(y))
        assert len(meters) == 2 * parts
        held[parts] = max(meter.bytes for meter in meters[parts:])
    for parts, found in held.items():
        # Twelve layers' activations of one part; at most two a layer.
        assert 12 * ACTIVATION / parts <= found <= 24 * ACTIVATION / parts + SLACK, held
    assert held[16] / held[1] <= 0.10, held


def test_one_part_is_alive_at_a_time_in_backward(samples):
    ops = samples.operations
    weight = samples.leaf(array(WIDTH, WIDTH, seed=1))
    block = unigrad.wrap({"weight": weight})
    alive = []
    most = []

    def function(x):
        h = ops.tanh(ops.matmul(x, weight))
        alive.append(samples.storage_alive(h))
        most.append(sum(check() for check in alive))
        return ops.sum(ops.sin(h), 1)

    split = unigrad.microbatch(function, ROWS // 8, blocks=block)
    with unigrad.GradientCollector(block) as collector:
        y = split(samples.tensor(array(ROWS, WIDTH)))
        assert sum(check() for check in alive) == 0, "the forward keeps no inner activation"
        collector.backward(ops.sum(y))
    assert len(alive) == 8 + 1 + 8, "the parts, a look at the output's batch axis, the parts again"
    assert max(most) == 1
    assert sum(check() for check in alive) == 0


@pytest.mark.clause("M2")
@pytest.mark.needs(Capability.KEPT_BYTES)
def test_no_copy_of_the_input_is_kept(samples):
    ops = samples.operations
    wide = 1024
    weight = samples.leaf(array(wide, seed=1))
    block = unigrad.wrap({"weight": weight})
    x = samples.tensor(array(ROWS, wide))
    split = unigrad.microbatch(lambda x: ops.sum(x * weight, 1), ROWS // 8, blocks=block)
    # The input is 1 MiB, the output 1 KiB.
    assert kept(block, lambda: split(x)) <= 2 * ROWS * 4 + 8 * SLACK

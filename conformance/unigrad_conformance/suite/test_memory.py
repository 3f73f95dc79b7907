"""kept_bytes counts what is held for backward (clause Y1), also through a checkpoint (C4)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError
from unigrad.protocols import Capability
from unigrad_conformance.suite.collecting import whole_tape
from unigrad_conformance.suite.parts import deep, kept
from unigrad_conformance.suite.problems import array, dense, mlp, same_bits, to_numpy

pytestmark = [pytest.mark.clause("Y1"), pytest.mark.needs(Capability.KEPT_BYTES)]

ROWS, WIDTH = 256, 64
ACTIVATION = ROWS * WIDTH * 4
# What is no activation: losses, saved sizes, one snapshot of the random state a region.
SLACK = 16_384


def tanh_chain(samples, length):
    """Return a block of one leaf and a function of ``length`` tanh over ``x * weight``, each of which keeps its output."""
    weight = samples.leaf(array(WIDTH, seed=1))

    def function(x):
        y = x * weight
        for _ in range(length):
            y = samples.operations.tanh(y)
        return y

    return unigrad.wrap({"weight": weight}), function


@pytest.mark.parametrize("length", [1, 4, 9])
def test_every_kept_activation_is_counted(samples, record, length):
    block, function = tanh_chain(samples, length)
    x = samples.tensor(array(ROWS, WIDTH))
    found = kept(block, lambda: function(x))
    # The derivative of tanh needs its output or its input: one activation each, and the product in front if inputs are kept.
    assert length * ACTIVATION <= found <= (length + 1) * ACTIVATION + SLACK
    record("activations, rounded", math.floor(found / ACTIVATION), choice=True)


def test_what_exists_before_is_not_counted(samples):
    # Weight, bias and input together are far larger than the output.
    model = dense(samples, 2048, 1)
    x = samples.tensor(array(512, 2048))
    assert kept(unigrad.wrap(model), lambda: model(x)) <= 512 * 4 + SLACK


def test_the_output_is_counted_even_if_no_backward_needs_it(samples):
    weight = samples.leaf(array(WIDTH))
    block = unigrad.wrap({"weight": weight})
    x = samples.tensor(array(ROWS, WIDTH))
    assert ACTIVATION <= kept(block, lambda: x + weight) <= ACTIVATION + SLACK


def test_what_is_dropped_inside_is_not_counted(samples, backend):
    weight = samples.leaf(array(WIDTH))
    block = unigrad.wrap({"weight": weight})
    x = samples.tensor(array(ROWS, WIDTH))
    ops = samples.operations

    def function():
        for _ in range(5):
            ops.sum(ops.tanh(x * weight))
        return ops.sum(x, 0) * weight

    # A tape that goes as a whole holds what leads nowhere until it goes: a product or a tanh of each turn, or both.
    assert kept(block, function) < ACTIVATION * (11 if whole_tape(backend) else 1)


def test_a_storage_is_counted_once(samples):
    weight = samples.leaf(array(WIDTH))
    block = unigrad.wrap({"weight": weight})
    x = samples.tensor(array(ROWS, WIDTH))
    ops = samples.operations
    held = []

    def function():
        y = ops.tanh(x * weight)
        held.extend([y, y, y])
        # Each of these keeps y for its derivative.
        return [ops.sum(y * y), ops.sum(ops.sin(y))]

    # The tanh, and the product and the sine, which some frameworks keep for a sum; never one for each mention of y.
    assert kept(block, function) <= 3 * ACTIVATION + SLACK


def test_buffers_are_not_counted(samples):
    def forward(self, x):
        samples.set_buffer(self, "table", self.table * 0.5)
        return samples.operations.sum(x * self.weight)

    model = samples.model(
        forward, parameters={"weight": array(4)}, buffers={"table": np.ones(ACTIVATION // 2, "float32")}
    )
    x = samples.tensor(array(2, 4))
    block = unigrad.wrap(model)
    # The buffer is 2 activations; its new value may replace the old one, so that only one more is made.
    assert kept(block, lambda: block(x)) <= 2 * ACTIVATION + SLACK


def test_a_backward_inside_lets_go(samples):
    block, function = tanh_chain(samples, 6)
    x = samples.tensor(array(ROWS, WIDTH))
    with unigrad.GradientCollector(block) as collector, unigrad.kept_bytes(block) as meter:
        loss = samples.operations.sum(function(x))
        collector.backward(loss)
    assert meter.bytes <= SLACK


def test_without_recording_only_the_output_is_kept(samples):
    block, function = tanh_chain(samples, 6)
    x = samples.tensor(array(ROWS, WIDTH))
    with samples.no_grad(), unigrad.kept_bytes(block) as meter:
        y = function(x)
    assert meter.bytes == ACTIVATION
    assert to_numpy(y).shape == (ROWS, WIDTH)


def test_the_same_again_and_again(samples):
    block, function = tanh_chain(samples, 3)
    x = samples.tensor(array(ROWS, WIDTH))
    kept(block, lambda: function(x))  # what a framework sets up at its first operation is not of interest
    assert kept(block, lambda: function(x)) == kept(block, lambda: function(x))


def test_measurements_nest(samples):
    block, function = tanh_chain(samples, 3)
    x = samples.tensor(array(ROWS, WIDTH))
    with unigrad.GradientCollector(block, on_unused="ignore"), unigrad.kept_bytes(block) as outer:
        first = function(x)
        with unigrad.kept_bytes(block) as inner:
            second = function(x)
    assert inner.bytes >= 3 * ACTIVATION
    assert 2 * inner.bytes - SLACK <= outer.bytes <= 2 * inner.bytes + SLACK
    same_bits({"y": to_numpy(first)}, {"y": to_numpy(second)})


def test_an_exception_inside_ends_the_measurement(samples):
    block, function = tanh_chain(samples, 2)
    x = samples.tensor(array(ROWS, WIDTH))
    with pytest.raises(KeyError), unigrad.kept_bytes(block):
        raise KeyError("inside")
    assert kept(block, lambda: function(x)) >= 2 * ACTIVATION


def test_a_measurement_is_entered_once(samples):
    block, function = tanh_chain(samples, 2)
    x = samples.tensor(array(ROWS, WIDTH))
    measurement = unigrad.kept_bytes(block)
    with unigrad.GradientCollector(block, on_unused="ignore"), measurement as meter:
        with pytest.raises(ArgumentError, match="kept_bytes again"), measurement:
            pass
        y = function(x)
    assert to_numpy(y).shape == (ROWS, WIDTH)
    found = meter.bytes
    assert found >= 2 * ACTIVATION
    with pytest.raises(ArgumentError, match="kept_bytes again"), measurement:
        pass
    assert meter.bytes == found


def test_values_and_gradients_are_those_without_measuring(samples):
    model, x = mlp(samples, 3, 5, 2), samples.tensor(array(4, 3))
    results = []
    for measured in (False, True):
        with unigrad.GradientCollector(model) as collector:
            if measured:
                with unigrad.kept_bytes(model):
                    y = model(x)
            else:
                y = model(x)
            collector.backward(samples.operations.sum(y))
        results.append({name: to_numpy(value) for name, value in collector.gradients.items()})
    same_bits(results[1], results[0])


@pytest.mark.clause("C4")
def test_a_checkpoint_keeps_a_twelfth_of_twelve_layers(samples):
    model, x = deep(samples, WIDTH), samples.tensor(array(ROWS, WIDTH, seed=99))
    block = unigrad.wrap(model)
    plain = kept(block, lambda: model(x))
    rerun = unigrad.checkpoint(model)
    found = kept(block, lambda: rerun(x))
    assert plain >= 12 * ACTIVATION
    assert ACTIVATION <= found <= ACTIVATION + SLACK
    assert found / plain <= 0.10

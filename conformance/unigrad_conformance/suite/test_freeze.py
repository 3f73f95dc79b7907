"""B3: frozen means no gradient and no buffer change, by patterns of names."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError
from unigrad_conformance.suite.block_problems import branches, collect
from unigrad_conformance.suite.problems import array, dense, to_numpy

pytestmark = pytest.mark.clause("B3")


def heads(samples, block, **options):
    ops = samples.operations
    x = samples.tensor(array(5, 3))
    return collect(block, lambda: sum(ops.sum(out) for out in block(x, use=("left", "right"))) * 1.0, **options)


PATTERNS = {
    "layer": ("encoder", {"encoder.weight", "encoder.bias"}),
    "name": ("left.weight", {"left.weight"}),
    "leaf": ("*.bias", {"encoder.bias", "left.bias", "right.bias"}),
    "one-of": ("[er]*", {"encoder.weight", "encoder.bias", "right.weight", "right.bias"}),
    "below": ("right.*", {"right.weight", "right.bias"}),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_frozen_parameters_have_no_gradient(samples, record, pattern):
    text, frozen = PATTERNS[pattern]
    block = unigrad.wrap(branches(samples))
    assert block.freeze(text) is block
    collector = heads(samples, block)
    assert set(collector.usage.frozen) == frozen
    assert set(collector.gradients) == set(block.parameters) - frozen
    record("frozen", set(collector.usage.frozen))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_unfreezing_undoes_it(samples, pattern):
    text, frozen = PATTERNS[pattern]
    block = unigrad.wrap(branches(samples)).freeze()
    assert block.unfreeze(text) is block
    assert set(heads(samples, block).gradients) == frozen


def test_a_layer_name_is_no_prefix_of_another_name(samples):
    model = samples.model(lambda self, x: x, layers={"a": dense(samples, 2, 2), "ab": dense(samples, 2, 2)})
    block = unigrad.wrap(model).freeze("a")
    assert collect(block, lambda: samples.operations.sum(samples.leaf(array(2)))).usage.frozen == ("a.weight", "a.bias")


def test_gradients_of_the_others_are_those_of_the_unfrozen_model(samples):
    free, half = unigrad.wrap(branches(samples)), unigrad.wrap(branches(samples)).freeze("left")
    expected = heads(samples, free).gradients
    found = heads(samples, half).gradients
    for name in found:
        assert to_numpy(found[name]).tobytes() == to_numpy(expected[name]).tobytes()


@pytest.mark.parametrize("action", ["freeze", "unfreeze"])
def test_a_pattern_that_fits_nothing_is_an_error_and_changes_nothing(samples, action):
    block = unigrad.wrap(branches(samples)).freeze("left")
    with pytest.raises(ArgumentError, match=r"'encoder\.wieght'.*encoder\.weight"):
        getattr(block, action)("encoder.wieght")
    assert set(heads(samples, block).usage.frozen) == {"left.weight", "left.bias"}


@pytest.mark.parametrize("action", ["freeze", "unfreeze"])
@pytest.mark.parametrize("pattern", [None, 3, ["encoder"], b"encoder"], ids=["none", "number", "list", "bytes"])
def test_a_pattern_is_a_string(samples, action, pattern):
    with pytest.raises(ArgumentTypeError, match="pattern"):
        getattr(unigrad.wrap(branches(samples)), action)(pattern)


def test_freezing_twice_and_unfreezing_once_is_unfrozen(samples):
    block = unigrad.wrap(branches(samples)).freeze("left").freeze("left").unfreeze("left")
    assert not heads(samples, block).usage.frozen


def test_a_tied_parameter_is_frozen_under_each_of_its_names(samples):
    layer = dense(samples, 2, 2)
    block = unigrad.wrap(samples.layer("sequential", layers=[layer, samples.layer("tanh"), layer])).freeze("2.weight")
    collector = collect(block, lambda: samples.operations.sum(block(samples.tensor(array(1, 2)))))
    assert collector.usage.frozen == ("0.weight",)
    assert list(collector.gradients) == ["0.bias"]
    block.unfreeze("2")
    assert not collect(block, lambda: samples.operations.sum(block(samples.tensor(array(1, 2))))).usage.frozen


def test_freezing_lasts_as_long_as_the_model(samples):
    model = branches(samples)
    unigrad.wrap(model).freeze("left")
    assert set(heads(samples, unigrad.wrap(model)).usage.frozen) == {"left.weight", "left.bias"}


def test_a_watched_input_of_a_frozen_block_has_its_gradient(samples):
    block = unigrad.wrap(dense(samples, 3, 2)).freeze()
    weight = block.state()["weight"]
    ops = samples.operations
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        x = collector.watch(samples.tensor(array(1, 3)), "x")
        collector.backward(ops.sum(block(x)))
    assert not collector.gradients
    # a sum of two float32 weights
    reference = samples.operations.sum(samples.tensor(weight), 0)
    np.testing.assert_allclose(
        to_numpy(collector.input_gradients["x"]).sum(), to_numpy(reference).sum(), rtol=1e-6, atol=1e-6
    )


def counting(samples):
    def forward(self, x):
        samples.set_buffer(self, "count", self.count + 1)
        return x * self.gain

    counter = samples.model(forward, parameters={"gain": array(2)}, buffers={"count": np.zeros((), "float32")})
    return samples.model(lambda self, x: self.counter(x), layers={"counter": counter})


WAYS = {
    "call": lambda block: block,
    "checkpoint-of-block": unigrad.checkpoint,
    "checkpoint-of-model": lambda block: unigrad.checkpoint(block.native),
    "checkpoint-of-function": lambda block: unigrad.checkpoint(lambda x: block(x), blocks=[block]),
    "microbatch-of-block": lambda block: unigrad.microbatch(block, 1, allow_coupled=True),
    "microbatch-of-model": lambda block: unigrad.microbatch(block.native, 1, allow_coupled=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_frozen_counter_does_not_count(samples, way):
    block = unigrad.wrap(counting(samples)).freeze("counter.count")
    run = WAYS[way](block)
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(run(samples.tensor(array(2, 2)))))
    assert block.state()["counter.count"] == 0
    assert list(collector.gradients) == ["counter.gain"]
    block.unfreeze()
    block(samples.tensor(array(2, 2)))
    assert block.state()["counter.count"] == 1

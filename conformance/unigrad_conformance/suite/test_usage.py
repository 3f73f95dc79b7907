"""R2, R5: five disjoint sets of names, over the time since entering or zero, the same on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import branches, collect, vector
from unigrad_conformance.suite.problems import array, dense, to_numpy

pytestmark = pytest.mark.clause("R2", "R5")

SETS = ("frozen", "reached", "disconnected", "unused")


def as_mapping(usage):
    return {name: list(getattr(usage, name)) for name in ("pending", *SETS)}


@settings(max_examples=40)
@given(kinds=st.lists(st.sampled_from(SETS), min_size=1, max_size=6))
def test_each_parameter_is_in_its_set(samples, kinds):
    ops = samples.operations

    def forward(self, x):
        loss = ops.sum(x)
        for index, kind in enumerate(kinds):
            if kind in ("reached", "frozen"):
                loss = loss + ops.sum(getattr(self, f"p{index}"))
            elif kind == "disconnected":
                getattr(self, f"p{index}") * 2.0
        return loss

    block = unigrad.wrap(vector(samples, forward, **{f"p{index}": [1.0] for index in range(len(kinds))}))
    for index, kind in enumerate(kinds):
        if kind == "frozen":
            block.freeze(f"p{index}")
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        x = collector.watch(samples.tensor(array(2)), "x")  # so that the loss has a graph whatever the kinds
        collector.backward(block(x))
    for name in SETS:
        assert getattr(collector.usage, name) == tuple(f"p{i}" for i, kind in enumerate(kinds) if kind == name)


@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_all_five_sets_of_one_model(samples, record):
    ops = samples.operations

    def forward(self, x):
        hidden = self.frozen(x)
        self.dropped(hidden)
        return self.used(hidden)

    names = ("frozen", "used", "dropped", "idle")
    layers = {name: dense(samples, 2, 2) for name in names} | {
        "late": samples.layer("lazy_dense", outputs=2, bias=True)
    }
    block = unigrad.wrap(samples.model(forward, layers=layers)).freeze("frozen")
    usage = collect(block, lambda: ops.sum(block(samples.tensor(array(1, 2))))).usage
    expected = {
        "pending": ["late"],
        "frozen": ["frozen.weight", "frozen.bias"],
        "reached": ["used.weight", "used.bias"],
        "disconnected": ["dropped.weight", "dropped.bias"],
        "unused": ["idle.weight", "idle.bias"],
    }
    assert as_mapping(usage) == expected
    record("usage", {name: set(found) for name, found in as_mapping(usage).items()})


@pytest.mark.parametrize("use", [("left",), ("right",), ("left", "right")], ids=["left", "right", "both"])
def test_sets_of_a_model_with_branches(samples, record, use):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    usage = collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3)), use=use)[-1])).usage
    record("usage", {name: set(found) for name, found in as_mapping(usage).items()})
    last = use[-1]
    assert set(usage.reached) == {f"{layer}.{leaf}" for layer in ("encoder", last) for leaf in ("weight", "bias")}
    assert set(usage.disconnected) == {f"{layer}.{leaf}" for layer in use[:-1] for leaf in ("weight", "bias")}


def test_reached_is_the_union_over_all_backwards(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    with unigrad.GradientCollector(block) as collector:
        left, right = block(samples.tensor(array(2, 3)), use=("left", "right"))
        collector.backward(ops.sum(left), retain_graph=True)
        assert collector.usage.disconnected == ("right.weight", "right.bias")
        collector.backward(ops.sum(right))
        assert collector.usage.reached == tuple(block.parameters)
        assert "left.weight" not in collector.gradients  # 'write' holds the last backward, usage the union
    assert collector.usage.reached == tuple(block.parameters)


def test_zero_begins_a_new_period(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    x = samples.tensor(array(2, 3))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(ops.sum(block(x, use=("left",))[0]))
        collector.zero()
        assert collector.usage.unused == tuple(block.parameters)
        block(x, use=("left",))  # used before zero and again after it
        assert collector.usage.disconnected == ("encoder.weight", "encoder.bias", "left.weight", "left.bias")
        collector.zero()
        collector.backward(ops.sum(block(x, use=("right",))[0]))
        assert collector.usage.unused == ("left.weight", "left.bias")
        assert collector.usage.reached == ("encoder.weight", "encoder.bias", "right.weight", "right.bias")


def test_a_forward_before_zero_is_not_counted_after_it(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = ops.sum(block(samples.tensor(array(2, 3)))[0])
        collector.zero()
        assert collector.usage.disconnected == ()
        collector.backward(loss)
        assert set(collector.usage.reached) == {"encoder.weight", "encoder.bias", "left.weight", "left.bias"}


def test_usage_stays_after_leaving(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3)))[0]))
    before = collector.usage
    with unigrad.GradientCollector(block, on_unused="ignore") as other:
        other.backward(ops.sum(block(samples.tensor(array(2, 3)), use=("right",))[0]))
    assert collector.usage == before


def test_usage_is_a_snapshot(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        before = collector.usage
        collector.backward(ops.sum(block(samples.tensor(array(2, 3)))[0]))
        assert before.unused == tuple(block.parameters)
        assert collector.usage != before


def test_leaves_of_others_are_counted_and_not_collected(samples, record):
    block = unigrad.wrap(dense(samples, 3, 2))
    other = unigrad.wrap(dense(samples, 3, 3))
    loose = samples.leaf(array(2))
    ops = samples.operations
    x = samples.tensor(array(4, 3))
    collector = collect(block, lambda: ops.sum(block(other(x)) * loose))
    assert collector.usage.outside == 3
    assert list(collector.gradients) == ["weight", "bias"]
    record("outside", collector.usage.outside)


def test_a_leaf_of_others_used_twice_is_counted_once(samples):
    block = unigrad.wrap(dense(samples, 2, 2))
    loose = samples.leaf(array(2))
    ops = samples.operations
    x = samples.tensor(array(1, 2))
    with unigrad.GradientCollector(block) as collector:
        for _ in range(2):
            collector.backward(ops.sum(block(x * loose) * loose))
        assert collector.usage.outside == 1
        collector.zero()
        assert collector.usage.outside == 0


def test_watched_tensors_are_not_outside(samples):
    block = unigrad.wrap(dense(samples, 2, 2))
    ops = samples.operations
    with unigrad.GradientCollector(block) as collector:
        plain = collector.watch(samples.tensor(array(1, 2)), "plain")
        leaf = collector.watch(samples.leaf(array(1, 2)), "leaf")
        collector.backward(ops.sum(block(plain + leaf)))
    assert collector.usage.outside == 0


def test_collecting_inputs_only_still_sorts_parameters(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(2, 3)), "x")
        collector.backward(ops.sum(block(x)[0]))
    assert set(collector.usage.reached) == {"encoder.weight", "encoder.bias", "left.weight", "left.bias"}
    assert not collector.gradients


def test_a_weight_of_zero_reaches_but_collects_nothing(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    with unigrad.GradientCollector(block, accumulate="add", on_unused="ignore") as collector:
        collector.backward(ops.mean(block(samples.tensor(array(2, 3)))[0]), weight=0)
        collector.backward(ops.mean(block(samples.tensor(array(2, 3)))[0]), weight=2)
    assert set(collector.gradients) == {"encoder.weight", "encoder.bias", "left.weight", "left.bias"}


def test_usage_prints_every_set(samples):
    block = unigrad.wrap(branches(samples)).freeze("right")
    ops = samples.operations
    text = str(collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3)))[0])).usage)
    for line in ("pending: -", "frozen: right.weight, right.bias", "disconnected: -", "unused: -", "outside: 0"):
        assert line in text.splitlines()
    assert "reached: encoder.weight, encoder.bias, left.weight, left.bias" in text


def test_gradients_or_zeros_fill_what_no_loss_reached(samples):
    block = unigrad.wrap(branches(samples)).freeze("encoder")
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3)))[0]))
    filled = {name: to_numpy(value) for name, value in collector.gradients_or_zeros().items()}
    assert list(filled) == ["left.weight", "left.bias", "right.weight", "right.bias"]
    assert np.array_equal(filled["right.weight"], np.zeros((2, 4), "float32"))
    assert filled["left.bias"].tolist() == [2, 2]

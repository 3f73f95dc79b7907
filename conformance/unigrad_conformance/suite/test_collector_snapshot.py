"""Clause G7: what is handed out is a snapshot; scale and clip change what is applied."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.collecting import close, collects, f32, leaves, overwrite
from unigrad_conformance.suite.problems import array, mlp, to_numpy

pytestmark = pytest.mark.clause("G7")


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def sum_of_both(samples, own):
    # Both gradients are the same values, for which some frameworks return one tensor twice.
    both = own["a"] + own["b"]
    return samples.operations.sum(both * both)


def plain_sum(samples, own):
    # The gradient is one number, which some frameworks return expanded over the whole shape.
    return samples.operations.sum(own["a"] + own["b"])


@pytest.mark.parametrize("mode", ["write", "add"])
@pytest.mark.parametrize(
    ("loss", "wanted"), [pytest.param(sum_of_both, [8, 12], id="equal"), pytest.param(plain_sum, [1, 1], id="expanded")]
)
def test_two_gradients_never_share_memory(samples, backend, loss, wanted, mode):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own, mode) as collector:
        collector.backward(loss(samples, own))
    found = collector.gradients
    written = overwrite(backend, found["a"])
    np.testing.assert_array_equal(to_numpy(found["a"]), [-99, -99] if written else wanted)
    np.testing.assert_array_equal(to_numpy(found["b"]), wanted)


@pytest.mark.parametrize("mode", ["write", "add"])
@pytest.mark.parametrize("loss", [sum_of_both, plain_sum], ids=["equal", "expanded"])
def test_writing_into_a_snapshot_does_not_reach_the_collector(samples, backend, loss, mode):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own, mode) as collector:
        collector.backward(loss(samples, own))
        wanted = {name: to_numpy(value) for name, value in collector.gradients.items()}
        for value in collector.gradients.values():
            overwrite(backend, value)
        collects(collector.gradients, **wanted)
        collector.backward(loss(samples, own))
        times = 2 if mode == "add" else 1
        collects(collector.gradients, **{name: times * value for name, value in wanted.items()})


@pytest.mark.parametrize("mode", ["write", "add"])
@pytest.mark.parametrize("read_first", [True, False], ids=["read-before", "read-after"])
def test_a_later_backward_does_not_change_a_snapshot(samples, mode, read_first):
    own = leaves(samples, a=[1, 2])
    with collector_of(own, mode) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0))
        first = collector.gradients
        if read_first:
            collects(first, a=[3, 3])
        collector.backward(samples.operations.sum(own["a"] * 5.0))
        collector.scale(2.0)
        collector.zero()
        collector.backward(samples.operations.sum(own["a"] * 7.0))
        collects(first, a=[3, 3])


def test_a_snapshot_of_a_weighted_mean_stands(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0), weight=1)
        first = collector.gradients
        collector.backward(samples.operations.sum(own["a"] * 5.0), weight=1)
        collects(first, a=[3, 3])
        collects(collector.gradients, a=[4, 4])


def test_a_snapshot_is_the_same_object_at_each_reading(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    found = collector.gradients
    assert found["a"] is found["a"]
    assert found["a"] is not collector.gradients["a"]


@pytest.mark.parametrize("mode", ["write", "add"])
def test_a_cotangent_written_later_does_not_change_the_gradient(samples, backend, mode):
    # The gradient of x + 1 is the cotangent itself, which must not be kept by reference.
    own = leaves(samples, a=[1, 2])
    vector = samples.tensor(f32([5, 7]))
    with collector_of(own, mode) as collector:
        collector.backward(own["a"] + 1.0, cotangent=vector)
        written = overwrite(backend, vector)
        collects(collector.gradients, a=[5, 7])
        overwrite(backend, collector.gradients["a"], 3.0)
    np.testing.assert_array_equal(to_numpy(vector), [-99, -99] if written else [5, 7])


def test_an_input_written_later_does_not_change_the_gradient(samples, backend):
    own = leaves(samples, a=[1, 2])
    x = samples.tensor(f32([5, 7]))
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * x))
        overwrite(backend, x)
        collects(collector.gradients, a=[5, 7])


def test_writing_into_a_snapshot_does_not_change_parameters_or_inputs(samples, backend):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own, "write") as collector:
        collector.backward(samples.operations.sum(own["a"] * own["b"]))
        for value in collector.gradients.values():
            overwrite(backend, value)
    np.testing.assert_array_equal(to_numpy(own["a"]), [1, 2])
    np.testing.assert_array_equal(to_numpy(own["b"]), [3, 4])


def test_input_gradients_are_snapshots_too(samples, backend):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 1])), "x")
        collector.backward(samples.operations.sum(own["a"] + x))
        overwrite(backend, collector.input_gradients["x"])
        collects(collector.input_gradients, x=[1, 1])
        collects(collector.gradients, a=[1, 1])


def test_a_gradient_has_no_graph(samples, backend):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 1])), "x")
        collector.backward(samples.operations.sum(own["a"] * own["a"] * x))
        assert not backend.arrays.requires_gradient(collector.gradients["a"])
        assert not backend.arrays.requires_gradient(collector.input_gradients["x"])


def test_scale_changes_what_is_collected(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 1])), "x")
        collector.backward(samples.operations.sum(own["a"] * x))
        collector.scale(0.5)
        collects(collector.gradients, a=[0.5, 0.5])
        collects(collector.input_gradients, x=[0.5, 1])
        collector.backward(samples.operations.sum(own["a"] * x))
    collects(collector.gradients, a=[1.5, 1.5])


def test_clip_scales_the_norm_over_all_parameters(samples, record):
    own = leaves(samples, a=[3, 0], b=[[0], [4]])
    with collector_of(own) as collector:
        operations = samples.operations
        collector.backward(operations.sum(own["a"] * own["a"]) * 0.5 + operations.sum(own["b"] * own["b"]) * 0.5)
        collects(collector.gradients, a=[3, 0], b=[[0], [4]])
        collector.clip_by_global_norm(1.0)
    # One square root, a division and a product: a few eps.
    close(collector.gradients, 8 * 2.0**-23, a=[0.6, 0], b=[[0], [0.8]])
    record("gradients", collector.gradients, terms=3, reason="square root, division and product")


@pytest.mark.parametrize(("size", "maximum"), [(1e20, 1.0), (1e-30, 1e-31)])
def test_clip_of_what_has_no_square_in_float32(samples, size, maximum):
    own = leaves(samples, a=[1, 1, 1, 1])
    with unigrad.GradientCollector(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * size))
        collector.clip_by_global_norm(maximum)
    # Four elements of one size: each is half of the norm.
    np.testing.assert_allclose(to_numpy(collector.gradients["a"]), np.full(4, maximum / 2), rtol=1e-6)


def test_clip_leaves_a_smaller_norm_alone(samples):
    model = mlp(samples, 3, 4, 2)
    with collector_of(model) as collector:
        collector.backward(samples.operations.mean(model(samples.tensor(array(5, 3)))))
        before = {name: to_numpy(value) for name, value in collector.gradients.items()}
        collector.clip_by_global_norm(1e6)
        after = {name: to_numpy(value) for name, value in collector.gradients.items()}
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_clip_of_zero_or_of_no_gradients_is_no_error(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.clip_by_global_norm(1.0)
        assert len(collector.gradients) == 0
        collector.backward(samples.operations.sum(own["a"] * 0.0))
        collector.clip_by_global_norm(1.0)
    collects(collector.gradients, a=[0, 0])


def test_clip_does_not_touch_input_gradients(samples):
    own = leaves(samples, a=[3, 4])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([100, 100])), "x")
        collector.backward(samples.operations.sum(own["a"] * x))
        collector.clip_by_global_norm(1.0)
    collects(collector.input_gradients, x=[3, 4])


@pytest.mark.clause("G11")
def test_clip_of_a_weighted_mean_bounds_the_mean(samples):
    own = leaves(samples, a=[1, 1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * samples.tensor(f32([3, 4]))), weight=7)
        collector.backward(samples.operations.sum(own["a"] * samples.tensor(f32([3, 4]))), weight=3)
        collector.clip_by_global_norm(1.0)
    # Sums of integers are exact; square root, two divisions and two products: a few eps.
    close(collector.gradients, 16 * 2.0**-23, a=[0.6, 0.8])


def test_clipping_a_snapshot_does_not_clip_what_is_applied(samples, backend):
    own = leaves(samples, a=[3, 4])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
        for value in collector.gradients.values():
            overwrite(backend, value, 0.0)
        optimizer = unigrad.Optimizer(own, samples.sgd(0.5))
        collector.apply(optimizer)
    np.testing.assert_array_equal(to_numpy(own["a"]), [0, 0])


def test_clip_and_scale_change_what_is_applied(samples):
    own = leaves(samples, a=[3, 4])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
        collector.scale(0.25)
        optimizer = unigrad.Optimizer(own, samples.sgd(1.0))
        collector.apply(optimizer)
    np.testing.assert_array_equal(to_numpy(own["a"]), [1.5, 2])

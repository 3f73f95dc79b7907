"""Clause G11: weighted accumulation is the mean over all items, for any split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, GraphReleasedError
from unigrad_conformance.suite.collecting import close, collects, f32, inputs_of, leaves, state_of
from unigrad_conformance.suite.problems import array, mlp, to_numpy

pytestmark = pytest.mark.clause("G11")
EXACT = "small integers, exact in every dtype"


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def mean_square(samples, y):
    return samples.operations.mean(y * y)


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any))
def test_any_split_with_uneven_and_empty_parts_is_the_big_batch(samples, sizes):
    count = sum(sizes)
    model = mlp(samples, 3, 4, 2)
    batch = array(count, 3, seed=7)
    with collector_of(model) as whole:
        whole.backward(mean_square(samples, model(samples.tensor(batch))), weight=count)
    with collector_of(model) as parts:
        start = 0
        for size in sizes:
            if size == 0:
                # The mean over an empty part is NaN on every framework; it must not reach the sum.
                loss = mean_square(samples, model(samples.tensor(batch[:1]))) * float("nan")
            else:
                loss = mean_square(samples, model(samples.tensor(batch[start : start + size])))
            parts.backward(loss, weight=size)
            start += size
    for name, value in whole.gradients.items():
        # count terms summed in another order, and one division: a few eps per term, of the size of the largest gradient.
        bound = 8 * 2.0**-23 * (count + 8) * max(1.0, float(np.abs(to_numpy(value)).max()))
        np.testing.assert_allclose(to_numpy(parts.gradients[name]), to_numpy(value), rtol=0, atol=bound, err_msg=name)
    assert sorted(parts.gradients) == sorted(whole.gradients)


def test_the_mean_is_over_items_not_over_calls(samples, record):
    own = leaves(samples, w=[1])
    operations = samples.operations
    with collector_of(own) as collector:
        collector.backward(operations.sum(own["w"] * 2.0), weight=3)
        collector.backward(operations.sum(own["w"] * 10.0), weight=1)
    collects(collector.gradients, w=[4])
    record("gradients", collector.gradients, reason="a sum of integers over a power of two")


def test_read_half_way_it_is_the_mean_so_far(samples):
    own = leaves(samples, w=[1, 1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["w"] * 2.0), weight=1)
        collects(collector.gradients, w=[2, 2])
        collector.backward(samples.operations.sum(own["w"] * 6.0), weight=3)
        collects(collector.gradients, w=[5, 5])
        collector.backward(samples.operations.sum(own["w"] * 1.0), weight=4)
        collects(collector.gradients, w=[3, 3])


def test_reading_does_not_change_what_is_collected(samples):
    own = leaves(samples, w=[1, 1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["w"] * 6.0), weight=2)
        for _ in range(3):
            collects(collector.gradients, w=[6, 6])
            collects(collector.gradients_or_zeros(), w=[6, 6])


def test_a_name_that_only_some_parts_reach_is_divided_by_all_items(samples):
    own = leaves(samples, a=[1], b=[1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 8.0), weight=1)
        collector.backward(samples.operations.sum(own["b"] * 8.0), weight=3)
    # The loss of the big batch is (8a + 3*8b)/4.
    collects(collector.gradients, a=[2], b=[6])


def test_input_gradients_follow_the_same_rule(samples):
    own = leaves(samples, a=[1, 1])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        collector.backward(samples.operations.sum(own["a"] * x * 2.0), weight=3)
        collector.backward(samples.operations.sum(own["a"] * x * 10.0), weight=1)
    collects(collector.input_gradients, x=[4, 4])
    np.testing.assert_array_equal(inputs_of(collector)["x"], [4, 4])


def test_weight_zero_adds_nothing_even_for_a_nan_loss(samples):
    own = leaves(samples, a=[1, 1], b=[1, 1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0), weight=2)
        collector.backward(samples.operations.sum(own["b"] * float("nan")), weight=0)
        collects(collector.gradients, a=[3, 3])


def test_weight_zero_releases_as_usual(samples):
    own = leaves(samples, a=[1, 1])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, weight=0, retain_graph=True)
        collector.backward(loss, weight=0)
        with pytest.raises(GraphReleasedError):
            collector.backward(loss, weight=1)


def test_weight_zero_of_a_released_loss_is_refused(samples):
    own = leaves(samples, a=[1, 1])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, weight=1)
        with pytest.raises(GraphReleasedError):
            collector.backward(loss, weight=0)


def test_a_total_of_zero_is_an_error(samples):
    own = leaves(samples, a=[1, 1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0), weight=0)
        with pytest.raises(ArgumentError, match="weight"):
            _ = collector.gradients["a"]
        collector.backward(samples.operations.sum(own["a"] * 3.0), weight=2)
        collects(collector.gradients, a=[3, 3])


def test_a_retained_graph_may_be_weighted_twice(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, weight=3, retain_graph=True)
        collector.backward(loss, weight=5)
    collects(collector.gradients, a=[2, 4])


def test_a_weighted_list_is_the_weighted_sum(samples):
    own = leaves(samples, a=[1, 2])
    operations = samples.operations
    with collector_of(own) as collector:
        collector.backward([operations.sum(own["a"]), operations.sum(own["a"] * 2.0)], weight=3)
        collector.backward(operations.sum(own["a"] * 7.0), weight=1)
    collects(collector.gradients, a=[4, 4])


@pytest.mark.parametrize(
    "weight", [np.int64(3), np.float32(3.0), 3.0, 3], ids=["numpy-integer", "numpy-float", "float", "integer"]
)
def test_every_kind_of_number_is_a_weight(samples, weight):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 5.0), weight=weight)
        collector.backward(samples.operations.sum(own["a"] * 1.0), weight=1)
    collects(collector.gradients, a=[4, 4])


def test_small_weights_keep_their_ratio(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 5.0), weight=0.75e-20)
        collector.backward(samples.operations.sum(own["a"] * 1.0), weight=0.25e-20)
    # Two products, one sum and a division by a number that float32 rounds: a few eps.
    close(collector.gradients, 8 * 2.0**-23, a=[4, 4])


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        pytest.param(-1, ArgumentError, id="negative"),
        pytest.param(float("nan"), ArgumentError, id="nan"),
        pytest.param(float("inf"), ArgumentError, id="infinite"),
        pytest.param(10**400, ArgumentError, id="no-float-is-so-large"),
        pytest.param("3", ArgumentTypeError, id="text"),
        pytest.param(True, ArgumentTypeError, id="flag"),
        pytest.param([3], ArgumentTypeError, id="list"),
    ],
)
def test_a_bad_weight_is_refused_before_anything_runs(samples, weight, error):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 5.0), weight=1)
        loss = samples.operations.sum(own["a"] * own["a"])
        before = state_of(collector)
        with pytest.raises(error, match="weight"):
            collector.backward(loss, weight=weight)
        assert state_of(collector) == before
        collector.backward(loss, weight=1)  # the refused call released nothing
    close(collector.gradients, 2.0**-22, a=[3.5, 4.5])


def test_a_weight_in_write_is_refused_before_anything_runs(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own, "write") as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        for weight in (0, 1, 3):
            with pytest.raises(ArgumentError, match="add"):
                collector.backward(loss, weight=weight)
        assert len(collector.gradients) == 0
        collector.backward(loss)
    collects(collector.gradients, a=[2, 4])


@pytest.mark.parametrize("first", [None, 2, 0], ids=["unweighted-first", "weighted-first", "zero-first"])
def test_weighted_and_unweighted_calls_do_not_mix(samples, first):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0), weight=first)
        loss = samples.operations.sum(own["a"] * own["a"])
        with pytest.raises(ArgumentError, match="weight"):
            collector.backward(loss, weight=2 if first is None else None)
        collector.backward(loss, weight=None if first is None else 2)  # neither counted nor released
    wanted = {None: [5, 7], 2: [2.5, 3.5], 0: [2, 4]}[first]
    close(collector.gradients, 2.0**-22, a=wanted)


def test_nothing_is_divided_by_a_count_of_calls(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        for count in range(1, 5):
            collector.backward(samples.operations.sum(own["a"]))
            collects(collector.gradients, a=[count, count])


@pytest.mark.parametrize("weight", [1e-42, 1e-310, 1e39])
def test_a_weight_out_of_the_range_of_gradients_is_an_error(samples, weight):
    # Its product with a float32 gradient would be 0 or infinite, and the mean no number.
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        with pytest.raises(ArgumentError, match="range of float32"):
            collector.backward(samples.operations.sum(own["a"] * 4.0), weight=weight)
        collector.backward(samples.operations.sum(own["a"] * 4.0), weight=1e-30)
        collector.backward(samples.operations.sum(own["a"] * 4.0), weight=1e30)
    np.testing.assert_allclose(to_numpy(collector.gradients["a"]), [4, 4], rtol=4e-7)

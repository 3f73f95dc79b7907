"""Real faults of kind J that concern weights: accumulated parts equal to the big batch."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.collecting import close, collects, f32, leaves
from unigrad_conformance.suite.problems import to_numpy

pytestmark = pytest.mark.clause("G11")
EXACT = "small integers, exact in every dtype"
# Values of the cases are given to six decimals, and a float32 sum of a few terms is as good as that.
DIGITS = 1e-5


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.case(76)
def test_the_mean_over_tokens_is_not_the_mean_of_means(samples, record):
    own = leaves(samples, w=1)
    with collector_of(own) as collector:
        for tokens in ([1, 2, 3], [10]):
            loss = samples.operations.mean(own["w"] * samples.tensor(f32(tokens)))
            collector.backward(loss, weight=len(tokens))
    collects(collector.gradients, w=4)
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.case(78)
def test_two_loss_terms_of_one_count(samples, record):
    own = leaves(samples, w=1)
    with collector_of(own) as collector:
        for count, likelihood, smoothing in ((3, 6.0, 9.0), (1, 10.0, 3.0)):
            mean = own["w"] * (0.9 * likelihood / count + 0.1 * smoothing / (3 * count))
            collector.backward(mean, weight=count)
    close(collector.gradients, DIGITS, w=3.7)
    record("gradients", collector.gradients, terms=2, reason="two weighted terms")


@pytest.mark.case(79)
def test_a_left_over_window_is_divided_by_its_own_length(samples, record):
    own = leaves(samples, w=1)
    found = []
    with collector_of(own) as collector:
        for window in ((1, 2, 3, 4), (5, 6)):
            for factor in window:
                collector.backward(own["w"] * float(factor), weight=1)
            found.append(float(to_numpy(collector.gradients["w"])))
            collector.zero()
    assert found == [2.5, 5.5]
    record("windows", f32(found), reason="sums of integers over a power of two")


@pytest.mark.clause("G18")
@pytest.mark.case(80)
def test_three_chunks_of_the_last_batch_are_one_step(samples, record):
    own = leaves(samples, w=[1, 1])
    optimizer = unigrad.Optimizer(own, samples.sgd(0.5))
    batch = f32([[1, 2], [3, 4], [5, 6], [7, 8]])
    with collector_of(own) as collector:
        for start, stop in ((0, 2), (2, 3), (3, 4)):
            rows = samples.tensor(batch[start:stop])
            loss = samples.operations.sum(own["w"] * rows) * (1 / (stop - start))
            collector.backward(loss, weight=stop - start)
            np.testing.assert_array_equal(to_numpy(own["w"]), [1, 1])
        collector.apply(optimizer)
    np.testing.assert_array_equal(to_numpy(own["w"]), [1 - 0.5 * 4, 1 - 0.5 * 5])
    record("value", own["w"], reason=EXACT)


@pytest.mark.case(81)
def test_replicas_are_reduced_after_the_last_part(samples, record):
    replicas = [leaves(samples, w=1), leaves(samples, w=1)]
    sums = []
    for own, parts in zip(replicas, ((1, 3), (2, 5)), strict=True):
        with collector_of(own) as collector:
            for factor in parts:
                collector.backward(own["w"] * float(factor))
        sums.append(float(to_numpy(collector.gradients["w"])))
    reduced = sum(sums) / len(sums)
    assert reduced == 5.5
    record("reduced", reduced, reason=EXACT)


@pytest.mark.clause("G18")
@pytest.mark.case(84)
@pytest.mark.parametrize(
    ("name", "wanted"), [("sgd", [0.826116, 1.976932]), ("adam", [0.800731, 2.199110])], ids=["sgd", "adam"]
)
@pytest.mark.parametrize("size", [12, 4], ids=["whole", "in-three-parts"])
def test_one_update_per_window(samples, record, name, wanted, size):
    own = leaves(samples, v0=1, v1=2)
    # Adam without decay is AdamW with a decay of zero.
    factory = samples.sgd(0.1, decay=0.1) if name == "sgd" else samples.adamw(0.1)
    optimizer = unigrad.Optimizer(own, factory)
    data = f32(np.arange(1, 13))
    for _ in range(2):
        with collector_of(own) as collector:
            for start in range(0, 12, size):
                error = own["v0"] * samples.tensor(data[start : start + size]) - own["v1"]
                collector.backward(samples.operations.mean(error * error) * 0.01, weight=size)
            collector.apply(optimizer)
    found = [float(to_numpy(own[part])) for part in ("v0", "v1")]
    # The value given was computed with another small constant under the root, which moves the sixth digit.
    np.testing.assert_allclose(found, wanted, rtol=DIGITS)
    record("values", f32(found), terms=24, reason="two steps of means over twelve samples")

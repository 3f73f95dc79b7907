"""Clause G17: gradients that can be differentiated again, where the backend declares it."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import UnsupportedError
from unigrad.protocols import Capability
from unigrad_conformance.suite.collecting import collects, f32, leaves
from unigrad_conformance.suite.problems import dense, to_numpy

pytestmark = pytest.mark.clause("G17")
EXACT = "small integers, exact in every dtype"


def collector_of(block, accumulate="write"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.needs(Capability.SECOND_ORDER)
def test_the_gradient_of_a_gradient(samples, record):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["a"] * own["a"]), create_graph=True)
        first = collector.gradients["a"]
        np.testing.assert_array_equal(to_numpy(first), [3, 12])
        collector.backward(samples.operations.sum(first * first))
    # d (3a²)² = 36 a³
    collects(collector.gradients, a=[36, 288])
    record("second", collector.gradients, reason=EXACT)


@pytest.mark.needs(Capability.SECOND_ORDER)
def test_a_gradient_penalty_of_an_input(samples, record):
    own = leaves(samples, w=[3, 4])
    with collector_of(own, "add") as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        y = samples.operations.sum(own["w"] * x * x)
        collector.backward(y, create_graph=True)
        slope = collector.input_gradients["x"]
        collector.zero()
        collector.backward(samples.operations.sum(slope * slope))
    # (2wx)²: 8 w x²
    collects(collector.gradients, w=[24, 128])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.needs(Capability.SECOND_ORDER)
def test_create_graph_keeps_the_graph(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own, "add") as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, create_graph=True)
        collector.backward(loss)
    collects(collector.gradients, a=[4, 8])


@pytest.mark.needs(Capability.SECOND_ORDER)
def test_a_sum_of_created_gradients_stays_connected(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own, "add") as collector:
        for _ in range(2):
            collector.backward(samples.operations.sum(own["a"] * own["a"] * own["a"]), create_graph=True)
        total = collector.gradients["a"]
        np.testing.assert_array_equal(to_numpy(total), [6, 24])
        collector.zero()
        collector.backward(samples.operations.sum(total))
    collects(collector.gradients, a=[12, 24])


def test_undeclared_second_order_is_refused_before_anything_runs(samples, backend):
    if Capability.SECOND_ORDER in backend.spec.capabilities:
        return  # the tests above show that it works
    model = dense(samples, 2, 1)
    with collector_of(model, "add") as collector:
        loss = samples.operations.sum(model(samples.tensor(f32([[1, 2]]))))
        with pytest.raises(UnsupportedError, match=backend.spec.name):
            collector.backward(loss, create_graph=True)
        assert len(collector.gradients) == 0
        collector.backward(loss)
    np.testing.assert_array_equal(to_numpy(collector.gradients["weight"]), [[1, 2]])

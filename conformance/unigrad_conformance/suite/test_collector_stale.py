"""Clause G14: parameters changed between a forward and a later backward of its loss."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import StaleGraphError
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.collecting import collects, f32, leaves, state_of
from unigrad_conformance.suite.problems import to_numpy

pytestmark = pytest.mark.clause("G14")


def collector_of(block, accumulate="write"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def forward_time_or_stale(collector, loss, **wanted):
    """Assert that a backward gives the gradients of the forward's values, or refuses and changes nothing."""
    before = state_of(collector)
    try:
        collector.backward(loss)
    except StaleGraphError:
        assert state_of(collector) == before
        return "StaleGraphError"
    collects(collector.gradients, **wanted)
    return "kept"


def test_a_step_before_another_backward_of_the_same_loss(samples):
    own = leaves(samples, a=[1, 2])
    optimizer = unigrad.Optimizer(own, samples.sgd(0.5))
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"] * own["a"])
        collector.backward(loss, retain_graph=True)
        collects(collector.gradients, a=[3, 12])
        collector.apply(optimizer)
        np.testing.assert_array_equal(to_numpy(own["a"]), [-0.5, -4])
        forward_time_or_stale(collector, loss, a=[3, 12])


def test_a_step_of_another_block_that_the_loss_uses(samples):
    own, head = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4])
    optimizer = unigrad.Optimizer(head, samples.sgd(1.0))
    with collector_of(own) as collector, collector_of(head) as other:
        loss = samples.operations.sum(own["a"] * head["b"])
        other.backward(loss, retain_graph=True)
        other.apply(optimizer)
        np.testing.assert_array_equal(to_numpy(head["b"]), [2, 2])
        forward_time_or_stale(collector, loss, a=[3, 4])


def test_loading_a_state_before_another_backward_of_the_same_loss(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, retain_graph=True)
        unigrad.wrap(own).load_state({"a": f32([10, 20])})
        forward_time_or_stale(collector, loss, a=[2, 4])


def test_loading_a_state_before_the_first_backward(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        unigrad.wrap(own).load_state({"a": f32([10, 20])})
        forward_time_or_stale(collector, loss, a=[2, 4])


def test_a_value_that_the_gradient_does_not_need_may_change(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * samples.tensor(f32([3, 4])))
        unigrad.wrap(own).load_state({"a": f32([10, 20])})
        forward_time_or_stale(collector, loss, a=[3, 4])


def test_a_forward_after_the_step_is_fresh(samples, record):
    own = leaves(samples, a=[1, 2])
    optimizer = unigrad.Optimizer(own, samples.sgd(0.25))
    with collector_of(own) as collector:
        for _ in range(3):
            collector.backward(samples.operations.sum(own["a"] * own["a"]))
            collector.apply(optimizer)
    np.testing.assert_array_equal(to_numpy(own["a"]), [0.125, 0.25])
    record("value", own["a"], reason="halved three times, exact")


@pytest.mark.parametrize("retained", [True, False], ids=["after-a-backward", "before-any-backward"])
def test_a_native_change(samples, guarantee, retained):
    declared = guarantee(Guarantee.STALE_NATIVE)
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        if retained:
            collector.backward(loss, retain_graph=True)
        samples.change(own["a"], f32([10, 20]))
        np.testing.assert_array_equal(to_numpy(own["a"]), [10, 20])
        if declared == "undetected":
            collector.backward(loss)
            assert (to_numpy(collector.gradients["a"]) != [2, 4]).any()
        else:
            assert forward_time_or_stale(collector, loss, a=[2, 4]) == declared


def test_a_hidden_change(samples, guarantee):
    declared = guarantee(Guarantee.STALE_HIDDEN)
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, retain_graph=True)
        samples.change_hidden(own["a"], f32([10, 20]))
        if declared == "undetected":
            collector.backward(loss)
            assert (to_numpy(collector.gradients["a"]) != [2, 4]).any()
        else:
            assert forward_time_or_stale(collector, loss, a=[2, 4]) == declared


def test_the_error_says_what_was_changed_and_what_to_do(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        unigrad.wrap(own).load_state({"a": f32([10, 20])})
        message = ""
        try:
            collector.backward(loss)
        except StaleGraphError as error:
            message = str(error)
        else:
            collects(collector.gradients, a=[2, 4])
            return
    assert "forward again" in message

"""Clauses G2 and G3: repeated backward, and what a releasing backward makes unusable."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import GraphReleasedError
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.collecting import collects, f32, leaves, state_of
from unigrad_conformance.suite.problems import dense, to_numpy

EXACT = "small integers, exact in every dtype"


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.clause("G2", "G12")
@pytest.mark.parametrize("mode", ["write", "add"])
def test_retain_retain_release_refuse(samples, record, dtype, mode):
    own = leaves(samples, dtype, x1=[1, 2, 3, 4], x2=[5, 6, 7, 8])
    with collector_of(own, mode) as collector:
        loss = samples.operations.sum(own["x1"] * own["x2"] * own["x1"])
        for count, retain in enumerate((True, True, False), start=1):
            collector.backward(loss, retain_graph=retain)
            times = count if mode == "add" else 1
            collects(collector.gradients, x1=times * np.array([10, 24, 42, 64]), x2=times * np.array([1, 4, 9, 16]))
        before = state_of(collector)
        with pytest.raises(GraphReleasedError, match="retain_graph"):
            collector.backward(loss)
        assert state_of(collector) == before
    record("gradients", collector.gradients, reason=EXACT)


def sum_of(samples, x):
    return samples.operations.sum(x)


def shifted(samples, x):
    return samples.operations.sum(x + 1.0)


def squared(samples, x):
    return samples.operations.sum(x * x)


def viewed(samples, x):
    return samples.operations.reshape(samples.operations.index(x, slice(0, 1)), ())


def chained(samples, x):
    return samples.operations.sum(samples.operations.tanh(x + 1.0) * 2.0 - 1.0)


GRAPHS = [pytest.param(graph, id=graph.__name__) for graph in (sum_of, shifted, squared, viewed, chained)]


@pytest.mark.clause("G3")
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_second_backward_is_refused_whatever_the_graph_saved(samples, graph):
    own = leaves(samples, x=[1, 2])
    with collector_of(own) as collector:
        loss = graph(samples, own["x"])
        collector.backward(loss)
        before = state_of(collector)
        for retain in (False, True):
            with pytest.raises(GraphReleasedError):
                collector.backward(loss, retain_graph=retain)
        assert state_of(collector) == before


@pytest.mark.clause("G3")
@pytest.mark.parametrize("graph", GRAPHS)
def test_a_new_loss_on_a_released_trunk_is_refused(samples, graph):
    own = leaves(samples, x=[1, 2], other=[3, 4])
    with collector_of(own) as collector:
        trunk = graph(samples, own["x"])
        collector.backward(trunk * 2.0)
        late = trunk + samples.operations.sum(own["other"])
        before = state_of(collector)
        with pytest.raises(GraphReleasedError):
            collector.backward(late)
        assert state_of(collector) == before


@pytest.mark.clause("G3")
@pytest.mark.parametrize("graph", GRAPHS)
def test_two_heads_made_before_share_the_release_of_their_trunk(samples, graph):
    own = leaves(samples, x=[1, 2])
    with collector_of(own) as collector:
        trunk = graph(samples, own["x"])
        first, second = trunk * 2.0, trunk * 3.0
        collector.backward(first)
        before = state_of(collector)
        with pytest.raises(GraphReleasedError):
            collector.backward(second)
        assert state_of(collector) == before


@pytest.mark.clause("G3")
def test_a_retained_trunk_serves_a_second_head(samples, record):
    own = leaves(samples, x=[1, 2])
    with collector_of(own) as collector:
        trunk = own["x"] * own["x"]
        first, second = samples.operations.sum(trunk), samples.operations.sum(trunk * 3.0)
        collector.backward(first, retain_graph=True)
        collector.backward(second)
    collects(collector.gradients, x=[2 + 6, 4 + 12])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G3")
def test_the_same_loss_through_another_collector_is_refused(samples):
    own = leaves(samples, x=[1, 2])
    with collector_of(own) as outer, collector_of(own) as inner:
        loss = shifted(samples, own["x"])
        outer.backward(loss)
        with pytest.raises(GraphReleasedError):
            inner.backward(loss)
        assert len(inner.gradients) == 0
        collects(outer.gradients, x=[1, 1])


@pytest.mark.clause("G3", "G0")
def test_the_same_loss_through_a_later_collector_is_refused(samples, guarantee):
    own = leaves(samples, x=[1, 2])
    with collector_of(own) as first:
        loss = shifted(samples, own["x"])
        first.backward(loss)
    # Where a loss recorded before entering has no graph at all, that is the refusal.
    refusals = (
        (GraphReleasedError,)
        if guarantee(Guarantee.AMBIENT_GRAPH) == "kept"
        else (
            GraphReleasedError,
            unigrad.NoGraphError,
        )
    )
    with collector_of(own) as second, pytest.raises(refusals):
        second.backward(loss)
    assert len(second.gradients) == 0


@pytest.mark.clause("G3")
def test_branches_that_the_engine_need_not_run_are_released_too(samples):
    a, b = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4])
    with collector_of(a) as first, collector_of(b) as second:
        branch = b["b"] * b["b"]
        loss = samples.operations.sum(a["a"] * 2.0 + branch)
        first.backward(loss)
        collects(first.gradients, a=[2, 2])
        with pytest.raises(GraphReleasedError):
            second.backward(loss)
        assert len(second.gradients) == 0


@pytest.mark.clause("G3", "G8")
def test_a_loss_that_reaches_nothing_of_the_block_is_released(samples):
    own, other = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4])
    with collector_of(own) as collector:
        loss = squared(samples, other["b"])
        collector.backward(loss)
        assert len(collector.gradients) == 0
        with pytest.raises(GraphReleasedError):
            collector.backward(loss)


@pytest.mark.clause("G3", "G9")
def test_a_collector_without_parameters_releases(samples):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own, parameters=False) as collector:
        loss = squared(samples, own["a"])
        collector.backward(loss)
        with pytest.raises(GraphReleasedError):
            collector.backward(loss)


@pytest.mark.clause("G3", "G10")
def test_one_released_loss_in_a_list_refuses_the_list_and_leaves_the_others(samples, guarantee):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    kept = guarantee(Guarantee.INDEPENDENT_RELEASE) == "kept"
    with collector_of(own) as collector:
        dead, alive = squared(samples, own["a"]), squared(samples, own["b"])
        collector.backward(dead)
        before = state_of(collector)
        for losses in ([alive, dead], [dead, alive]):
            with pytest.raises(GraphReleasedError):
                collector.backward(losses)
            assert state_of(collector) == before
        if kept:
            collector.backward(alive)
            collects(collector.gradients, a=[2, 4], b=[6, 8])


@pytest.mark.clause("G3")
def test_an_independent_graph(samples, guarantee):
    declared = guarantee(Guarantee.INDEPENDENT_RELEASE)
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own) as collector:
        first, second = squared(samples, own["a"]), squared(samples, own["b"])
        collector.backward(first)
        if declared == "kept":
            collector.backward(second)
            collects(collector.gradients, a=[2, 4], b=[6, 8])
        else:
            with pytest.raises(getattr(unigrad, declared), match="retain_graph"):
                collector.backward(second)
            collects(collector.gradients, a=[2, 4])


@pytest.mark.clause("G3")
def test_a_trunk_that_another_collector_released_with_another_loss(samples, guarantee):
    declared = guarantee(Guarantee.SHARED_TRUNK)
    own, head = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4])
    with collector_of(own) as first, collector_of(head) as second:
        trunk = own["a"] + 1.0
        first_loss = samples.operations.sum(trunk * 2.0)
        second_loss = samples.operations.sum(trunk * head["b"])
        first.backward(first_loss)
        if declared == "kept":
            second.backward(second_loss)
            collects(second.gradients, b=[2, 3])
        else:
            with pytest.raises(getattr(unigrad, declared)):
                second.backward(second_loss)
            assert len(second.gradients) == 0
        collects(first.gradients, a=[2, 2])


@pytest.mark.clause("G3")
def test_recording_goes_on_after_a_release(samples, record):
    model = dense(samples, 2, 1)
    with collector_of(model) as collector:
        for count in range(1, 4):
            collector.backward(samples.operations.sum(model(samples.tensor(f32([[1, 2]])))))
            np.testing.assert_array_equal(to_numpy(collector.gradients["weight"]), [[count, 2 * count]])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G3")
def test_no_graph_is_taken_for_an_older_released_one(samples):
    # Frameworks reuse addresses and node ids at once, so a mark by id would refuse a fresh graph.
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        for _ in range(300):
            collector.backward(shifted(samples, own["a"]))
        collects(collector.gradients, a=[300, 300])


@pytest.mark.clause("G3")
def test_a_leaf_is_never_released(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(squared(samples, own["a"]))
        collector.backward(squared(samples, own["a"]))
        collects(collector.gradients, a=[4, 8])


@pytest.mark.clause("G3")
def test_the_refusal_leaves_modes_alone(samples, backend):
    block = unigrad.wrap(dense(samples, 2, 1)).train()
    with collector_of(block) as collector:
        loss = samples.operations.sum(block(samples.tensor(f32([[1, 2]]))))
        collector.backward(loss)
        with pytest.raises(GraphReleasedError):
            collector.backward(loss)
        assert block.training is True
        assert backend.tape.is_recording()
        collector.backward(samples.operations.sum(block(samples.tensor(f32([[1, 2]])))))
    np.testing.assert_array_equal(to_numpy(collector.gradients["bias"]), [2])

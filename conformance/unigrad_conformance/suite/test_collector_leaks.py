"""Clause G15: nothing leaks, and an exception anywhere leaves everything as it was."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import unigrad
from unigrad.errors import GraphReleasedError, StaleGraphError
from unigrad_conformance.suite.collecting import collects, f32, leaves, state_of
from unigrad_conformance.suite.problems import array, dense, mlp, to_numpy

pytestmark = pytest.mark.clause("G15")


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def a_round(samples, model, retain=False):
    """Do one forward and backward in a collector of its own; return who tells whether its hidden memory is alive."""
    with collector_of(model) as collector:
        hidden = model(samples.tensor(array(4, 3)))
        alive = samples.storage_alive(hidden)
        loss = samples.operations.sum(hidden * hidden)
        collector.backward(loss, retain_graph=retain)
        gradient = samples.storage_alive(collector.gradients["0.weight"])
    return weakref.ref(collector), alive, gradient


@pytest.mark.parametrize("retain", [False, True], ids=["released", "retained"])
def test_a_hundred_collectors_leave_no_object(samples, retain):
    model = mlp(samples, 3, 4, 2)
    for _ in range(5):  # what is made once and kept, such as names, is no leak
        a_round(samples, model, retain)
    gc.collect()
    before = len(gc.get_objects())
    left = [a_round(samples, model, retain) for _ in range(100)]
    gc.collect()
    assert not any(collector() for collector, _, _ in left)
    assert not any(alive() for _, alive, _ in left)
    assert not any(gradient() for _, _, gradient in left)
    del left
    gc.collect()
    # One object per collector would be a hundred.
    assert len(gc.get_objects()) - before < 50


def test_a_hundred_empty_collectors_leave_no_object(samples):
    model = mlp(samples, 3, 4, 2)
    for _ in range(5):
        with collector_of(model):
            pass
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        with collector_of(model):
            pass
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_a_collector_keeps_no_activation_between_rounds(samples):
    model = mlp(samples, 3, 4, 2)
    told = []
    with collector_of(model) as collector:
        for _ in range(20):
            hidden = model(samples.tensor(array(4, 3)))
            told.append(samples.storage_alive(hidden))
            loss = samples.operations.sum(hidden * hidden)
            collector.backward(loss)
            del hidden, loss
        gc.collect()
        assert not any(alive() for alive in told)


def test_a_released_graph_is_freed_while_its_loss_lives(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        hidden = samples.operations.tanh(own["a"])
        alive = samples.storage_alive(hidden)
        loss = samples.operations.sum(hidden * hidden)
        del hidden
        assert alive()
        collector.backward(loss)
        gc.collect()
        assert not alive()
        assert np.isfinite(to_numpy(loss))


def test_a_backward_that_never_runs_leaves_nothing(samples):
    model = mlp(samples, 3, 4, 2)
    with collector_of(model):
        hidden = model(samples.tensor(array(4, 3)))
        alive = samples.storage_alive(hidden)
        loss = samples.operations.sum(hidden * hidden)
        del hidden, loss
        gc.collect()
        assert not alive()


def test_watched_tensors_are_let_go(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        alive = samples.storage_alive(x)
        collector.backward(samples.operations.sum(own["a"] * x))
        del x
    gc.collect()
    collects(collector.input_gradients, x=[1, 2])
    assert not alive()


def test_a_model_that_was_collected_can_die(samples):
    model = mlp(samples, 3, 4, 2)
    with collector_of(model) as collector:
        collector.backward(samples.operations.sum(model(samples.tensor(array(4, 3)))))
    gone = weakref.ref(model)
    del model, collector
    gc.collect()
    assert gone() is None


class InForwardError(Exception):
    """Raised by the models of these tests."""


def faulty(samples, error=InForwardError):
    """Return a model that raises, after a recorded operation, while ``model.broken`` holds."""
    state = {"broken": True}

    def forward(self, x):
        y = self.first(x)
        if state["broken"]:
            raise error("in forward")
        return self.second(y)

    model = samples.model(forward, layers={"first": dense(samples, 3, 4), "second": dense(samples, 4, 1, seed=2)})
    return model, state


@pytest.mark.parametrize("error", [InForwardError, KeyboardInterrupt, StopIteration])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_an_exception_in_forward(samples, backend, error, training):
    model, state = faulty(samples, error)
    block = unigrad.wrap(model)
    (block.train if training else block.eval)()
    x = samples.tensor(array(4, 3))
    with collector_of(block) as collector:
        before = state_of(collector)
        with pytest.raises(error, match="in forward"):
            block(x)
        after = state_of(collector)
        assert {key: value for key, value in after.items() if key != "usage"} == {
            key: value for key, value in before.items() if key != "usage"
        }
        assert block.training is training
        state["broken"] = False
        collector.backward(samples.operations.sum(block(x)))
    assert len(collector.gradients) == 4


def test_an_exception_that_leaves_the_collector(samples, backend):
    model, state = faulty(samples)
    x = samples.tensor(array(4, 3))
    recording = backend.tape.is_recording()
    with pytest.raises(InForwardError), unigrad.GradientCollector(model) as collector:
        model(x)
    # No warning of unused parameters on top of the exception: the filter would have made it an error.
    assert backend.tape.is_recording() == recording
    assert len(collector.gradients) == 0
    state["broken"] = False
    with collector_of(model) as collector:
        collector.backward(samples.operations.sum(model(x)))
    assert len(collector.gradients) == 4


def test_an_exception_with_collectors_nested(samples, backend):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as outer:
        with pytest.raises(InForwardError), collector_of(own):
            raise InForwardError
        assert backend.tape.is_recording()
        outer.backward(samples.operations.sum(own["a"]))
    collects(outer.gradients, a=[1, 1])


def test_a_stale_graph_in_backward(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, retain_graph=True)
        unigrad.wrap(own).load_state({"a": f32([5, 5])})
        before = state_of(collector)
        try:
            collector.backward(loss)
        except StaleGraphError:
            assert state_of(collector) == before
        else:
            collects(collector.gradients, a=[4, 8])
        collector.zero()
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
    collects(collector.gradients, a=[10, 10])


def test_a_released_graph_in_backward(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss)
        before = state_of(collector)
        with pytest.raises(GraphReleasedError):
            collector.backward(loss)
        assert state_of(collector) == before
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
    collects(collector.gradients, a=[4, 8])


@pytest.mark.parametrize("name", ["trace", "vjp"])
@pytest.mark.parametrize("mode", ["write", "add"])
def test_a_fault_of_the_engine_in_backward(samples, backend, monkeypatch, name, mode):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own, mode) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
        loss = samples.operations.sum(own["b"] * own["b"])
        before = state_of(collector)

        def broken(*args, **kwargs):
            raise MemoryError("injected")

        with monkeypatch.context() as patch:
            patch.setattr(backend.tape, name, broken)
            with pytest.raises(MemoryError, match="injected"):
                collector.backward(loss)
        assert state_of(collector) == before
        collector.backward(loss)  # the failing call released nothing
    collects(collector.gradients, **({} if mode == "write" else {"a": [2, 4]}), b=[6, 8])


def test_a_fault_while_adding(samples, backend, monkeypatch):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["b"]))
        before = state_of(collector)
        calls = []
        plain = backend.arrays.add

        def second_fails(left, right):
            calls.append(left)
            if len(calls) == 2:
                raise MemoryError("injected")
            return plain(left, right)

        with monkeypatch.context() as patch:
            patch.setattr(backend.arrays, "add", second_fails)
            with pytest.raises(MemoryError, match="injected"):
                collector.backward(samples.operations.sum(own["a"] * own["b"]))
        assert len(calls) == 2
        assert state_of(collector) == before


def test_a_fault_while_entering(samples, backend, monkeypatch):
    own = leaves(samples, a=[1, 2])
    recording = backend.tape.is_recording()

    def broken():
        raise MemoryError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(backend.tape, "open_region", broken)
        with pytest.raises(MemoryError, match="injected"), collector_of(own):
            raise AssertionError
    assert backend.tape.is_recording() == recording
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    collects(collector.gradients, a=[1, 1])


def test_an_exception_of_on_unused_still_closes(samples, backend):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    recording = backend.tape.is_recording()
    with pytest.raises(unigrad.UnusedParameterError), unigrad.GradientCollector(own, on_unused="error") as collector:
        collector.backward(samples.operations.sum(own["a"]))
    assert backend.tape.is_recording() == recording
    collects(collector.gradients, a=[1, 1])
    with pytest.raises(unigrad.CollectorClosedError):
        collector.zero()

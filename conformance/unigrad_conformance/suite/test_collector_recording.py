"""Clause G0: which forwards are recorded, and how long graphs and results live."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.collecting import collects, f32, leaves
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits, to_numpy

pytestmark = pytest.mark.clause("G0")


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.parametrize("wrapped", [True, False], ids=["block", "native-model"])
def test_block_call_and_native_call_are_both_recorded(samples, record, wrapped):
    model = mlp(samples, 3, 4, 2)
    block = unigrad.wrap(model)
    x = samples.tensor(array(5, 3))
    with unigrad.GradientCollector(block if wrapped else model) as collector:
        y = block(x) if wrapped else model(x)
        collector.backward(samples.operations.sum(y * y))
    with unigrad.GradientCollector(block) as other:
        y = model(x)
        other.backward(samples.operations.sum(y * y))
    same_bits(gradients_of(collector), gradients_of(other))
    record(
        "gradients",
        collector.gradients,
        terms=5 * 4,
        reason="sums over five samples and four hidden units, tanh between",
    )


def test_a_call_inside_gives_the_bits_of_a_call_outside(samples):
    model = mlp(samples, 3, 4, 2)
    x = samples.tensor(array(5, 3))
    outside = to_numpy(model(x))
    with collector_of(model):
        inside = to_numpy(model(x))
    np.testing.assert_array_equal(inside, outside)


def test_many_forwards_and_backwards_in_one_collector(samples, record):
    model = dense(samples, 2, 1)
    with collector_of(model) as collector:
        for count in range(1, 5):
            collector.backward(samples.operations.sum(model(samples.tensor(f32([[count, 1]])))))
    np.testing.assert_array_equal(to_numpy(collector.gradients["weight"]), [[10, 4]])
    record("gradients", collector.gradients, reason="small integers, exact in every dtype")


def test_forwards_before_the_first_backward(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        losses = [samples.operations.sum(own["a"] * float(factor)) for factor in (1, 2, 3)]
        for loss in reversed(losses):
            collector.backward(loss, retain_graph=True)
    collects(collector.gradients, a=[6, 6])


@pytest.mark.parametrize("mode", ["write", "add"])
def test_a_new_collector_starts_empty(samples, mode):
    own = leaves(samples, a=[1, 2])
    for _ in range(3):
        with collector_of(own, mode) as collector:
            assert dict(collector.gradients) == {}
            collector.backward(samples.operations.sum(own["a"] * own["a"]))
        collects(collector.gradients, a=[2, 4])


def test_results_live_as_long_as_the_collector(samples):
    model = dense(samples, 2, 1)
    with collector_of(model) as collector:
        collector.backward(samples.operations.sum(model(samples.tensor(f32([[1, 2]])))))
    np.testing.assert_array_equal(to_numpy(collector.gradients["weight"]), [[1, 2]])
    assert collector.usage.reached == ("weight", "bias")
    del model
    gc.collect()
    np.testing.assert_array_equal(to_numpy(collector.gradients["weight"]), [[1, 2]])


def test_what_was_handed_out_outlives_the_collector(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
    gradients = collector.gradients
    del collector, own
    gc.collect()
    collects(gradients, a=[2, 4])


def test_recording_is_afterwards_as_it_was(samples, backend):
    own = leaves(samples, a=[1, 2])
    before = backend.tape.is_recording()
    with collector_of(own):
        assert backend.tape.is_recording()
        with samples.no_grad():
            assert not backend.tape.is_recording()
        assert backend.tape.is_recording()
    assert backend.tape.is_recording() == before


def test_the_mode_of_the_block_does_not_change(samples):
    block = unigrad.wrap(mlp(samples, 2, 3, 1, rate=0.5))
    for choose, wanted in ((block.train, True), (block.eval, False)):
        choose()
        with collector_of(block) as collector:
            assert block.training is wanted
            collector.backward(samples.operations.sum(block(samples.tensor(f32([[1, 2]])))))
            assert block.training is wanted
        assert block.training is wanted


def test_a_loss_recorded_before_entering(samples, guarantee):
    declared = guarantee(Guarantee.AMBIENT_GRAPH)
    own = leaves(samples, a=[1, 2])
    loss = samples.operations.sum(own["a"] * own["a"])
    with collector_of(own) as collector:
        if declared == "kept":
            collector.backward(loss)
            collects(collector.gradients, a=[2, 4])
        else:
            with pytest.raises(getattr(unigrad, declared), match=r"(?i)inside|outside|before"):
                collector.backward(loss)
            assert len(collector.gradients) == 0


def test_leaving_drops_a_retained_graph(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        hidden = own["a"] * own["a"]
        alive = samples.storage_alive(hidden)
        loss = samples.operations.sum(hidden * hidden)
        collector.backward(loss, retain_graph=True)
        del hidden
        assert alive()
    del loss
    gc.collect()
    assert not alive()
    collects(collector.gradients, a=[4, 32])


def test_leaving_by_an_exception_keeps_the_results(samples):
    own = leaves(samples, a=[1, 2])
    collector = collector_of(own)

    def interrupted():
        with collector:
            collector.backward(samples.operations.sum(own["a"]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    collects(collector.gradients, a=[1, 1])


def test_a_forward_under_no_grad_is_not_recorded(samples):
    model = dense(samples, 2, 1)
    with collector_of(model) as collector:
        with samples.no_grad():
            model(samples.tensor(f32([[1, 2]])))
        assert set(collector.usage.unused) == {"weight", "bias"}
        collector.backward(samples.operations.sum(model(samples.tensor(f32([[1, 2]])))))
    np.testing.assert_array_equal(to_numpy(collector.gradients["weight"]), [[1, 2]])

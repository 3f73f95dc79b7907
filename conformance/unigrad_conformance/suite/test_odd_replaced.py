"""Clause G14: a layer replaced between forward and backward gives the gradient of its forward, or a clear error."""

from __future__ import annotations

import pytest

import unigrad
from unigrad.errors import ArgumentError, StaleGraphError
from unigrad_conformance.suite.collecting import collects, f32, whole_tape
from unigrad_conformance.suite.problems import same_bits

pytestmark = pytest.mark.clause("G14")


def scaling(samples, *values):
    return samples.model(lambda self, x: x * self.weight, parameters={"weight": f32(values)})


def holder(samples):
    return samples.model(lambda self, x: self.part(x), layers={"part": scaling(samples, 3, 4)})


@pytest.mark.parametrize("foreign", [False, True])
def test_a_loss_recorded_before_the_replacement_gives_its_gradient(samples, foreign):
    model = holder(samples)
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        outputs = model(samples.tensor(f32([1, 2])))
        if foreign:
            outputs = outputs * samples.leaf(f32([1, 1]))
        loss = samples.operations.sum(outputs)
        model.part = scaling(samples, 5, 6)
        collector.backward(loss)
        assert collector.usage.reached == ("part.weight",)
    collects(collector.gradients, **{"part.weight": [1, 2]})


def test_forwards_of_both_are_collected_one_by_one(samples, backend):
    model = holder(samples)
    with unigrad.GradientCollector(model, "add", on_unused="ignore") as collector:
        first = samples.operations.sum(model(samples.tensor(f32([1, 2]))))
        model.part = scaling(samples, 5, 6)
        second = samples.operations.sum(model(samples.tensor(f32([10, 20]))))
        collector.backward(second, retain_graph=whole_tape(backend))
        collector.backward(first)
    collects(collector.gradients, **{"part.weight": [11, 22]})


def test_gradients_of_two_shapes_have_no_sum(samples):
    model = holder(samples)
    x = samples.tensor(f32([1, 2]))
    with unigrad.GradientCollector(model, "add", on_unused="ignore") as collector:
        collector.backward(samples.operations.sum(model(x)))
        model.part = scaling(samples, 5)
        loss = samples.operations.sum(model(x))
        with pytest.raises(StaleGraphError, match=r"part\.weight.*replaced.*\(1,\).*\(2,\)"):
            collector.backward(loss)
        collects(collector.gradients, **{"part.weight": [1, 2]})
        collector.zero()
        collector.backward(loss)
    collects(collector.gradients, **{"part.weight": [3]})


@pytest.mark.clause("G18")
def test_a_gradient_that_fits_no_longer_is_not_applied(samples, backend):
    """NumPy would broadcast it, and a native step may read past its end."""
    model = holder(samples)
    block = unigrad.wrap(model)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        model.part = scaling(samples, 3)
        collector.backward(samples.operations.sum(model(samples.tensor(f32([1, 2])))))
        model.part = scaling(samples, 3, 4)
        optimizer = unigrad.Optimizer(block, samples.sgd(0.5))
        for use in (lambda: collector.apply(optimizer), collector.write_back):
            with pytest.raises(ArgumentError, match=r"part\.weight.*\(1,\).*\(2,\).*run forward and backward again"):
                use()
        assert optimizer.native is None
        assert backend.tape.native_gradient(block.parameters["part.weight"]) is None
    same_bits(block.state(), {"part.weight": f32([3, 4])})


def test_a_loss_of_both_is_refused(samples):
    model = holder(samples)
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        first = model(samples.tensor(f32([1, 2])))
        model.part = scaling(samples, 5, 6)
        loss = samples.operations.sum(first + model(samples.tensor(f32([1, 2]))))
        with pytest.raises(StaleGraphError, match=r"part\.weight"):
            collector.backward(loss)
    assert not collector.gradients

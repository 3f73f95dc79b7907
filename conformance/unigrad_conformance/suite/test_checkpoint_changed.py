"""Checkpoint: parameters and inputs that change between forward and backward are noticed, or change nothing."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Guarantee
from unigrad.samples import NoSampleError
from unigrad_conformance.suite.problems import array, gradients_of, same_bits, to_numpy
from unigrad_conformance.suite.regions import backward_through


def _squared(samples):
    return unigrad.wrap(
        samples.model(
            lambda self, x: samples.operations.matmul(x, self.w) * samples.operations.matmul(x, self.w),
            parameters={"w": array(3, 2)},
        )
    )


def _right(gradients):
    expected = 2 * array(2, 3, seed=1).T @ (array(2, 3, seed=1) @ array(3, 2))
    # Two matrix products over 2 and 3 terms in float32.
    np.testing.assert_allclose(
        gradients["w"], expected, rtol=0, atol=20 * np.finfo("float32").eps * np.abs(expected).max()
    )


@pytest.mark.clause("C8", "G14")
@pytest.mark.parametrize("how", ["load-state", "step", "change"])
def test_parameter_changed_between_forward_and_backward_is_noticed(samples, how):
    """An error, or the gradient at the forward's values; never that of the new ones."""
    block = _squared(samples)
    actions = {
        "load-state": lambda: block.load_state({"w": 2 * array(3, 2)}),
        "step": lambda: unigrad.Optimizer(block, samples.sgd(0.5)).step({"w": samples.tensor(array(3, 2))}),
        "change": lambda: samples.change(block.parameters["w"], 2 * array(3, 2)),
    }
    try:
        gradients = backward_through(samples, block, between=actions[how])
    except (unigrad.StaleGraphError, unigrad.RecomputeMismatchError):
        return
    _right(gradients)


@pytest.mark.clause("C8", "G14")
def test_hidden_change_of_a_parameter_is_noticed_by_the_value_check(samples, guarantee):
    guarantee(Guarantee.STALE_HIDDEN)  # a framework may have no hidden way; the value check holds whatever is declared
    block = _squared(samples)
    try:
        gradients = backward_through(
            samples, block, between=lambda: samples.change_hidden(block.parameters["w"], 2 * array(3, 2))
        )
    except (unigrad.StaleGraphError, unigrad.RecomputeMismatchError):
        return
    _right(gradients)


@pytest.mark.clause("C8", "G14")
@pytest.mark.parametrize("how", ["load-state", "change"])
def test_change_that_moves_no_output_is_noticed(samples, guarantee, how):
    """The weight meets a zero input, so no value check can see it; the gradient of the input would be another one."""
    noticed = how == "load-state" or guarantee(Guarantee.STALE_NATIVE) != "undetected"
    block = unigrad.wrap(samples.model(lambda self, x: x * self.w, parameters={"w": array(3)}))
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(np.zeros(3, "float32")), name="x")
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        if how == "load-state":
            block.load_state({"w": 2 * array(3)})
        else:
            samples.change(block.parameters["w"], 2 * array(3))
        try:
            collector.backward(loss)
        except unigrad.StaleGraphError:
            assert noticed
            return
    factor = 1 if noticed else 2
    same_bits({"x": to_numpy(collector.input_gradients["x"])}, {"x": factor * array(3)})


@pytest.mark.clause("C8", "G14", "A6")
def test_hidden_change_that_moves_no_output_is_as_declared(samples, guarantee):
    """The weight meets a zero input: no output moves, but the gradient of the input would be another one."""
    declared = guarantee(Guarantee.STALE_HIDDEN)
    block = unigrad.wrap(samples.model(lambda self, x: x * self.w, parameters={"w": array(3)}))
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(np.zeros(3, "float32")), name="x")
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        samples.change_hidden(block.parameters["w"], 2 * array(3))
        if declared not in ("kept", "undetected"):
            with pytest.raises(getattr(unigrad, declared)):
                collector.backward(loss)
            return
        collector.backward(loss)
    factor = 1 if declared == "kept" else 2
    same_bits({"x": to_numpy(collector.input_gradients["x"])}, {"x": factor * array(3)})


@pytest.mark.clause("C8", "B5")
def test_change_to_the_same_values_is_an_error_or_no_difference(samples):
    block = _squared(samples)
    try:
        gradients = backward_through(samples, block, between=lambda: block.load_state(block.state()))
    except unigrad.StaleGraphError:
        return
    _right(gradients)


@pytest.mark.clause("C8")
def test_input_changed_between_forward_and_backward_is_noticed(samples):
    block = _squared(samples)
    source = array(2, 3, seed=1).copy()
    try:
        shared = samples.shared_tensor(source)
    except NoSampleError:
        shared = samples.tensor(source)
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(unigrad.checkpoint(block)(shared))
        source += 10
        try:
            collector.backward(loss)
        except (unigrad.StaleGraphError, unigrad.RecomputeMismatchError):
            return
    _right(gradients_of(collector))


@pytest.mark.clause("C8", "B6")
def test_input_overwritten_by_an_operation_after_the_forward_is_noticed(samples):
    block = _squared(samples)
    x = samples.tensor(array(2, 3, seed=1))
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        samples.operations.set_item(samples.operations.reshape(x, (6,)), 0, 5.0)
        try:
            collector.backward(loss)
        except (unigrad.StaleGraphError, unigrad.RecomputeMismatchError):
            return
    _right(gradients_of(collector))


@pytest.mark.clause("C8", "B6")
def test_input_overwritten_by_an_operation_that_moves_no_output_is_noticed(samples):
    """The weight is zero, so no value check can see it; the gradient of the weight would be the new input."""
    block = unigrad.wrap(samples.model(lambda self, x: x * self.w, parameters={"w": np.zeros(3, "float32")}))
    x = samples.tensor(array(3))
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        samples.operations.set_item(x, 0, 5.0)
        try:
            collector.backward(loss)
        except unigrad.StaleGraphError:
            return
    same_bits(gradients_of(collector), {"w": array(3)})


@pytest.mark.clause("C12", "C5")
def test_region_that_overwrites_its_own_input_is_refused_or_right(samples):
    def forward(self, x):
        changed = samples.operations.set_item(samples.operations.reshape(x, (6,)), 0, 5.0)
        return samples.operations.tanh(changed * self.w)

    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(samples.model(forward, parameters={"w": array(6)}))
        with unigrad.GradientCollector(block) as collector:
            try:
                y = checkpoint(block)(samples.tensor(array(2, 3, seed=1)))
                collector.backward(samples.operations.sum(y))
            except unigrad.UnsupportedError:
                assert checkpoint is unigrad.checkpoint  # one of two right outcomes
                return
        found.append(gradients_of(collector))
    same_bits(*found)

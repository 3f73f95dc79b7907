"""Checkpoint: parameters that a function captures are routed; any other captured tensor is refused at the forward."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

GLOBAL: dict[str, Any] = {}


@pytest.mark.clause("C10")
def test_parameters_of_the_given_blocks_get_their_gradients(samples):
    weight = samples.leaf(array(3))
    layer = dense(samples, 3, 2)

    def function(x):
        return samples.operations.sum(layer(x * weight))

    found = []
    for run in (function, unigrad.checkpoint(function, blocks=[{"weight": weight}, layer])):
        with unigrad.GradientCollector(
            {"own": unigrad.wrap({"weight": weight}), "layer": unigrad.wrap(layer)}
        ) as collector:
            collector.backward(run(samples.tensor(array(4, 3))))
        found.append(gradients_of(collector))
    assert sorted(found[0]) == ["layer.bias", "layer.weight", "own.weight"]
    same_bits(*found)


@pytest.mark.clause("C10")
@pytest.mark.needs(Capability.CAPTURES)
@pytest.mark.parametrize("where", ["closure", "default", "partial", "list", "attribute", "global"])
def test_captured_leaf_gets_its_gradient(samples, where):
    weight = samples.leaf(array(3))

    class Holder:
        leaf = weight

    GLOBAL["leaf"] = weight
    boxed = [weight]
    functions: dict[str, Any] = {
        "closure": lambda x: samples.operations.tanh(x * weight),
        "default": lambda x, w=weight: samples.operations.tanh(x * w),
        "partial": functools.partial(lambda w, x: samples.operations.tanh(x * w), weight),
        "list": lambda x: samples.operations.tanh(x * boxed[0]),
        "attribute": lambda x: samples.operations.tanh(x * Holder.leaf),
        "global": lambda x: samples.operations.tanh(x * GLOBAL["leaf"]),
    }
    found = []
    for run in (functions[where], unigrad.checkpoint(functions[where])):
        with unigrad.GradientCollector({"weight": weight}) as collector:
            collector.backward(samples.operations.sum(run(samples.tensor(array(3, seed=1)))))
        found.append(gradients_of(collector))
    GLOBAL.clear()
    assert list(found[0]) == ["weight"]
    same_bits(*found)


@pytest.mark.clause("C10")
@pytest.mark.needs(Capability.CAPTURES)
def test_captured_models_get_their_gradients_and_move_their_buffers_once(samples):
    """A function finds the models that it reaches: their buffers are kept like those of blocks= ones."""
    found = []
    for checkpoint in (False, True):
        norm = samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)
        block = unigrad.wrap(norm).train()

        def function(x, block=block):
            return samples.operations.tanh(block(x))

        run = unigrad.checkpoint(function) if checkpoint else function
        with unigrad.GradientCollector(block) as collector:
            loss = samples.operations.sum(run(samples.tensor(array(4, 3))))
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        found.append(gradients_of(collector) | block.state())
    same_bits(*found)


def _captured(samples, where, hidden):
    holder = types.SimpleNamespace(hidden=hidden)
    GLOBAL["hidden"] = hidden
    boxed = [hidden]
    functions: dict[str, Any] = {
        "closure": lambda self, x: samples.operations.tanh(x * hidden * self.w),
        "default": lambda self, x, hidden=hidden: samples.operations.tanh(x * hidden * self.w),
        "list": lambda self, x: samples.operations.tanh(x * boxed[0] * self.w),
        "attribute": lambda self, x: samples.operations.tanh(x * holder.hidden * self.w),
        "global": lambda self, x: samples.operations.tanh(x * GLOBAL["hidden"] * self.w),
    }
    return functions[where]


@pytest.mark.clause("C10")
@pytest.mark.parametrize("where", ["closure", "default", "list", "attribute", "global"])
def test_captured_intermediate_tensor_is_an_error_at_forward(samples, where):
    weight = samples.leaf(array(3))
    with unigrad.GradientCollector({"weight": weight}, on_unused="ignore"):
        hidden = weight * 2.0
        model = samples.model(_captured(samples, where, hidden), parameters={"w": array(3)})
        with pytest.raises(unigrad.CapturedTensorError):
            unigrad.checkpoint(model)(samples.tensor(array(3, seed=1)))
    GLOBAL.clear()


@pytest.mark.clause("C10")
def test_error_names_the_captured_tensor(samples):
    weight = samples.leaf(array(3))
    with unigrad.GradientCollector({"weight": weight}, on_unused="ignore"):
        encoded = weight * 2.0
        run = unigrad.checkpoint(lambda x: samples.operations.tanh(x * encoded), blocks=[{"weight": weight}])
        with pytest.raises(unigrad.CapturedTensorError, match="encoded"):
            run(samples.tensor(array(3, seed=1)))


@pytest.mark.clause("C10", "C4")
def test_captured_tensor_is_refused_also_where_its_operation_saves_nothing(samples):
    """An addition keeps nothing for backward, so that nothing saved can show the captured tensor."""
    weight = samples.leaf(array(3))
    with unigrad.GradientCollector({"weight": weight}, on_unused="ignore"):
        hidden = weight * 2.0
        model = samples.model(lambda self, x: x + hidden + self.w, parameters={"w": array(3)})
        with pytest.raises(unigrad.CapturedTensorError):
            unigrad.checkpoint(model)(samples.tensor(array(3, seed=1)))


@pytest.mark.clause("C10")
def test_captured_tensor_as_argument_is_right(samples):
    weight = samples.leaf(array(3))
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        model = samples.model(lambda self, x, hidden: samples.operations.tanh(x * hidden))
        with unigrad.GradientCollector({"weight": weight}) as collector:
            hidden = weight * 2.0
            collector.backward(samples.operations.sum(checkpoint(model)(samples.tensor(array(3, seed=1)), hidden)))
        found.append(gradients_of(collector))
    same_bits(*found)


@pytest.mark.clause("C10")
def test_captured_constant_is_right(samples):
    constant = samples.tensor(array(3, seed=5))
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        model = samples.model(
            lambda self, x: samples.operations.tanh(x * constant * self.w), parameters={"w": array(3)}
        )
        with unigrad.GradientCollector(model) as collector:
            collector.backward(samples.operations.sum(checkpoint(model)(samples.tensor(array(3, seed=1)))))
        found.append(gradients_of(collector))
    same_bits(*found)


@pytest.mark.clause("C10", "G9")
def test_captured_watched_tensor_is_never_lost(samples):
    """A tensor watched outside and used through the closure: its gradient, or an error at forward; not none."""
    block = unigrad.wrap(samples.model(lambda self, y: y * self.w, parameters={"w": array(3)}))
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(array(3, seed=1)), name="x")
        run = unigrad.checkpoint(lambda y: samples.operations.tanh(block(y) * x), blocks=[block])
        try:
            loss = samples.operations.sum(run(samples.tensor(array(3, seed=2))))
        except unigrad.CapturedTensorError as error:
            assert "x" in str(error)  # noqa: PT017  # one of two right outcomes
            return
        collector.backward(loss)
    product = array(3) * array(3, seed=2)
    expected = (1 - np.tanh(product * array(3, seed=1)) ** 2) * product
    # A tanh and four products in float32.
    np.testing.assert_allclose(to_numpy(collector.input_gradients["x"]), expected, rtol=2e-6)


@pytest.mark.clause("C10", "C5")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_inner_region_that_captures_a_tensor_of_the_outer_one_is_an_error(samples):
    operations = samples.operations

    def outer(self, x):
        hidden = operations.tanh(x * self.w)
        inner = unigrad.checkpoint(lambda y: operations.sin(y * hidden), blocks=[unigrad.wrap(self)])
        return inner(x)

    model = samples.model(outer, parameters={"w": array(3)})
    with unigrad.GradientCollector(model, on_unused="ignore"), pytest.raises(unigrad.CapturedTensorError):
        unigrad.checkpoint(model)(samples.tensor(array(3, seed=1)))


@pytest.mark.clause("C10", "C3", "C2")
@pytest.mark.needs(Capability.CAPTURES)
@pytest.mark.parametrize("where", ["attribute", "helper", "nested-list", "method", "callable-object"])
def test_model_reached_over_a_detour_moves_its_buffers_once(samples, where):
    """Not in the closure itself: an attribute of an object, a global of a helper, a list of lists."""
    found = []
    for checkpoint in (lambda function: function, unigrad.checkpoint):
        norm = samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)
        block = unigrad.wrap(norm).train()

        class Trainer:
            def __init__(self, model):
                self.parts = {"model": model}

            def run(self, x):
                return samples.operations.tanh(self.parts["model"](x))

            __call__ = run

        trainer, nested = Trainer(norm), [[norm]]

        def helper(x, norm=norm):
            return samples.operations.tanh(norm(x))

        function = {
            "attribute": lambda x, trainer=trainer: samples.operations.tanh(trainer.parts["model"](x)),
            "helper": lambda x, helper=helper: helper(x),
            "nested-list": lambda x, nested=nested: samples.operations.tanh(nested[0][0](x)),
            "method": trainer.run,
            "callable-object": trainer,
        }[where]
        run = checkpoint(function)
        with unigrad.GradientCollector(block) as collector:
            collector.backward(samples.operations.sum(run(samples.tensor(array(4, 3)))))
        found.append(gradients_of(collector) | block.state())
    same_bits(*found)

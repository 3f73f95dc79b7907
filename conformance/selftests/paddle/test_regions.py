"""Regions whose arguments, outputs and hooks are of kinds that only Paddle has (clauses C1, C5, C10, C12)."""

import weakref

import numpy as np
import paddle
import pytest
from paddle import nn

import unigrad
from unigrad import CapturedTensorError, RecomputeMismatchError


def tensor(*shape):
    return paddle.to_tensor(np.random.default_rng(shape).standard_normal(shape).astype("float32"))


def gradients(block, run):
    """Collected gradients of ``run()``, and those of Paddle's own backward, which are the same; by name, as arrays."""
    block = unigrad.wrap(block)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(run())
    collected = {name: value.numpy() for name, value in collector.gradients.items()}
    run().backward()
    for name, parameter in block.parameters.items():
        assert (parameter.grad is None) == (name not in collected)
        if parameter.grad is not None:
            np.testing.assert_array_equal(parameter.grad.numpy(), collected[name])
            parameter.clear_gradient(False)
    return collected


def same(found, reference):
    assert found.keys() == reference.keys()
    for name, value in reference.items():
        np.testing.assert_array_equal(found[name], value)


FROM_ONE = {
    "unbind": lambda h: paddle.unbind(h.reshape([2, 3, 2, 4]), axis=2),
    "chunk": lambda h: h.chunk(2, axis=-1),
    "ellipsis": lambda h: (h, h[...]),
    "a part unused": lambda h: h.split(4, axis=-1)[1:3],
}


@pytest.mark.parametrize("how", FROM_ONE)
def test_arguments_from_one_operation_in_both_engines(how):
    """C1: whether the collector's or Paddle's own backward."""
    projection, x = nn.Linear(4, 8), tensor(2, 3, 4)

    def run(function):
        return (function(*FROM_ONE[how](projection(x))) ** 2).sum()

    def product(a, b):
        return a.tanh() * b

    plain = gradients(projection, lambda: run(product))
    same(gradients(projection, lambda: run(unigrad.checkpoint(product, blocks=[]))), plain)


def test_outputs_and_states_of_a_recurrent_layer_as_arguments():
    """C1, C5: all come from one node."""
    recurrent, head, x = nn.LSTM(4, 8), nn.Linear(8, 8), tensor(2, 5, 4)
    block = unigrad.join(recurrent=recurrent, head=head)

    def last(outputs, states):
        return (head(outputs) * states[0][-1].unsqueeze(1)).sum()

    plain = gradients(block, lambda: last(*recurrent(x)))
    same(gradients(block, lambda: unigrad.checkpoint(last, blocks=[head])(*recurrent(x))), plain)


@pytest.mark.parametrize("seen", [True, False], ids=["that can be seen", "that nobody sees"])
def test_a_captured_result_of_the_operation_that_an_argument_is_from_is_an_error(seen):
    """C10: the node alone does not tell it from the argument; the recompute does."""
    projection, x = nn.Linear(4, 8), tensor(3, 4)
    a, b = projection(x).split(2, axis=1)
    hidden = (lambda: b) if seen else weakref.ref(b)
    out = unigrad.checkpoint(lambda a: a * hidden(), blocks=[])(a)
    error = CapturedTensorError if seen else RecomputeMismatchError
    with unigrad.GradientCollector(projection) as collector, pytest.raises(error, match="argument"):
        collector.backward(out.sum())
    assert projection.weight.grad is None

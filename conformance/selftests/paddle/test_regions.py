"""Regions whose arguments, outputs and hooks are of kinds that only Paddle has (clauses C1, C5, C10, C12)."""

import weakref

import numpy as np
import paddle
import pytest
from paddle import nn

import unigrad
from unigrad import CapturedTensorError, RecomputeMismatchError, UnsupportedError


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


def _layer_hook(run, layer, x):
    handle = layer.register_forward_post_hook(lambda _, given, out: out.register_hook(lambda g: g * 2) and None)
    out = run(layer, x)
    handle.remove()
    return out


def _hooked(run, layer, x):
    out = run(layer, x)
    out.register_hook(lambda gradient: gradient * 2)
    return out


def _second_of_two(run, layer, x):
    first, second = run(lambda x: (layer(x), layer(x).tanh()), x)
    second.register_hook(lambda gradient: gradient * 2)
    return first + second


HOOKED = {
    "an output": _hooked,
    "one of two outputs": _second_of_two,
    "an output, by a hook of the layer": _layer_hook,
    "an output of an inner region": lambda run, layer, x: run(lambda x: _hooked(run, layer, x) * 1.0, x),
    "an argument, inside": lambda run, layer, x: (
        run(lambda x: x.register_hook(lambda gradient: gradient * 2) and layer(x), x) + x
    ),
}


@pytest.mark.parametrize("where", HOOKED)
def test_hooks_at_the_border_of_a_region_do_what_they_do_without_it(where):
    """C5: scaling or clipping by a hook."""
    before, layer, x = nn.Linear(4, 4), nn.Linear(4, 4), tensor(3, 4)
    block = unigrad.join(before=before, layer=layer)

    def plain(function, x):
        return function(x)

    def checkpointed(function, x):
        return unigrad.checkpoint(function, blocks=None if function is layer else [layer])(x)

    reference = gradients(block, lambda: (HOOKED[where](plain, layer, before(x)) ** 2).sum())
    found = gradients(block, lambda: (HOOKED[where](checkpointed, layer, before(x)) ** 2).sum())
    assert found.keys() == reference.keys()
    for name, value in reference.items():
        # the layer is used twice in one of them: two contributions in either order
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)


def test_a_leaf_as_the_vector_of_an_output_is_no_second_order():
    """C12: a constant that Paddle has given a node."""
    layer, vector = nn.Linear(4, 4), paddle.to_tensor([[1.0] * 4] * 2)
    out = unigrad.checkpoint(layer)(paddle.ones([2, 4]))
    with unigrad.GradientCollector(layer) as collector:
        collector.backward(unigrad.checkpoint(layer)(paddle.ones([2, 4])), cotangent=vector)
    assert collector.gradients["weight"].tolist() == [[2.0] * 4] * 4
    out.backward(vector)
    assert layer.weight.grad.tolist() == [[2.0] * 4] * 4


def test_second_order_of_an_output_itself_is_refused():
    """C12: what arrives there is a constant, and yet the gradient would be one too."""
    x = paddle.ones([2, 4])
    x.stop_gradient = False
    out = unigrad.checkpoint(lambda x: x**3, blocks=[])(x)
    with pytest.raises(UnsupportedError, match="second order"):
        paddle.grad(out, x, grad_outputs=[paddle.ones([2, 4])], create_graph=True)


@pytest.mark.parametrize("cut", [unigrad.checkpoint, lambda f, blocks: unigrad.microbatch(f, 3, blocks=blocks)])
def test_a_complex_output_keeps_its_graph(cut):
    """C5, C9."""
    layer, x = nn.Linear(4, 4), tensor(3, 4)

    def spectrum(x):
        h = layer(x)
        return h, paddle.fft.fft(h.astype("complex64"))

    def loss(run):
        h, z = run(x)
        return (h**2).sum() + (z.abs() ** 2).sum()

    found = gradients(layer, lambda: loss(cut(spectrum, blocks=[layer])))
    reference = gradients(layer, lambda: loss(spectrum))
    for name, value in reference.items():
        # two outputs: their contributions in either order
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)

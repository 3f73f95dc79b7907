"""Parts of a batch: the gradients of their variables come together one part after another, the last one first (M1, M2, M6, R1)."""

import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

PARTS = 8
X = np.random.default_rng(0).standard_normal((2 * PARTS, 3)).astype("float32")


class Watched(layers.Layer):
    """A matrix product that counts how many gradients of its matrix are alive whenever one is made."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(3, 3), name="kernel")
        self.made, self.alive = [], []

    def call(self, x):
        @tf.custom_gradient
        def told(value):
            def gradient(upstream):
                self.made.append(weakref.ref(upstream))
                self.alive.append(sum(one() is not None for one in self.made))
                return upstream

            return tf.identity(value), gradient

        return x @ told(tf.convert_to_tensor(self.kernel))


def gradients(call, variables, traced=False):
    def compute(x):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.square(call(x)))
        return tape.gradient(value, variables)

    return (tf.function(compute) if traced else compute)(tf.constant(X))


def test_of_the_gradients_of_many_parts_few_are_alive():
    layer = Watched()
    layer.build((None, 3))
    gradients(unigrad.microbatch(layer, size=2), [layer.kernel.value])
    assert len(layer.alive) == PARTS
    assert max(layer.alive) <= 3


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("reached", [(0,), (3,), (PARTS - 1,), (1, 4), tuple(range(PARTS))])
def test_only_the_parts_that_a_loss_reaches_count(reached, traced):
    layer = layers.Dense(1, activation="tanh")
    layer.build((None, 3))
    variables = [layer.kernel.value, layer.bias.value]
    model = keras.Sequential([layer, layers.Lambda(lambda x: tf.reduce_sum(x))])
    run = unigrad.microbatch(model, size=2, combine=lambda found: sum(found[place] for place in reached[::-1]))
    plain = lambda x: sum(model(x[2 * place : 2 * place + 2]) for place in reached)  # noqa: E731
    for ours, theirs in zip(gradients(run, variables, traced), gradients(plain, variables, traced), strict=True):
        # n terms of float32 in another order
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("traced", [False, True])
def test_a_variable_that_no_part_needs_has_no_gradient(traced):
    used, unused = layers.Dense(3), layers.Dense(3)
    both = keras.Sequential([used, unused])
    both.build((None, 3))

    def function(x):
        unused(x)
        return used(x)

    run = unigrad.microbatch(function, size=2, blocks=[both])
    found = gradients(run, [used.kernel.value, unused.kernel.value], traced)
    assert found[0] is not None
    assert found[1] is None


def test_two_backwards_of_one_tape_do_not_add_up():
    layer = layers.Dense(3)
    layer.build((None, 3))
    run = unigrad.microbatch(layer, size=2)
    with tf.GradientTape(persistent=True) as tape:
        value = tf.reduce_sum(tf.square(run(tf.constant(X))))
    first, second = (tape.gradient(value, layer.kernel.value) for _ in range(2))
    assert np.array_equal(first, second)


class Counting(layers.Layer):
    """A dense layer that counts its calls in training."""

    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")
        self.dense = layers.Dense(2)
        self.dense.build(shape)

    def call(self, x, training=None):
        if training:
            self.count.assign_add(1.0)
        return self.dense(x)


BUFFERS = {
    "statistics": lambda: [layers.Dense(2), layers.BatchNormalization()],
    "a spectral norm": lambda: [layers.SpectralNormalization(layers.Dense(2))],
    "a counter": lambda: [Counting()],
}
CALLS = {
    "a layer": lambda net, training: lambda x: unigrad.microbatch(net, 5)(x, training=training),
    "a function": lambda net, training: unigrad.microbatch(lambda x: net(x, training=training), blocks=[net], size=5),
    "a function traced before": lambda net, training: unigrad.microbatch(
        tf.function(lambda x: net(x, training=training)), blocks=[net], size=5
    ),
}


def with_buffers(kind):
    keras.utils.set_random_seed(0)
    net = keras.Sequential(BUFFERS[kind]())
    net.build((None, 3))
    return net


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_that_nothing_moves_are_no_coupling(kind, call, traced):
    """M1, G19: a trace has no values to compare, but knows what is written."""
    net = with_buffers(kind)
    variables = [v.value for v in net.trainable_variables]
    before = [v.numpy() for v in net.non_trainable_variables]
    found = [gradients(run, variables, traced) for run in (net, CALLS[call](net, False))]
    for one, two in zip(*found, strict=True):
        # Sums over 16 samples, part by part.
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-5)
    for variable, value in zip(net.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_that_a_part_moves_are_an_error_that_names_one(kind, call, traced):
    """M5, in a trace too, where the error comes while tracing and nothing has moved."""
    net = with_buffers(kind)
    before = [v.numpy() for v in net.non_trainable_variables]
    with pytest.raises(unigrad.BatchCoupledError, match=r"1|vector_u|count"):
        gradients(CALLS[call](net, True), [v.value for v in net.trainable_variables], traced)
    for variable, value in zip(net.non_trainable_variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_a_refused_part_that_a_trace_survives_has_moved_nothing():
    net = with_buffers("a counter")
    run = CALLS["a function"](net, True)

    @tf.function(autograph=False)
    def step(x):
        try:
            run(x)
        except unigrad.BatchCoupledError:
            return tf.reduce_sum(net(x))
        raise AssertionError

    step(tf.constant(X))
    assert net.layers[0].count.numpy() == 0


def test_a_probe_in_a_trace_is_refused():
    net = with_buffers("statistics")
    with pytest.raises(unigrad.UnsupportedError, match="verify"):
        gradients(unigrad.microbatch(net, 5, verify=True), [v.value for v in net.trainable_variables], True)

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

"""In a tf.function the graph optimizer joins operations; forward and recompute of a region are rounded alike (C5, C8)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import unigrad

X = np.random.default_rng(0).standard_normal((64, 3)).astype("float32")


def dense(activation):
    layer = keras.layers.Dense(5, activation=activation)
    layer.build((None, 3))
    return layer


def products(x):
    return x * x * 0.7 * x * 0.7


def convolved():
    parts = [keras.layers.Reshape((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.layers.Input((64,)), *parts, keras.layers.Flatten()])
    return lambda x: model(tf.transpose(x), training=False)


FUNCTIONS = {
    "products": lambda: products,
    "quotients": lambda: lambda x: x / 3.0 / 7.0 + tf.sqrt(tf.abs(x) + 1e-3),
    "complex-products": lambda: lambda x: tf.math.real(products(tf.complex(x, 2 * x))),
    "double-products": lambda: lambda x: tf.cast(products(tf.cast(x, tf.float64)), tf.float32),
    "powers": lambda: lambda x: tf.pow(x, 2.0) * 0.3 * 0.3 / 1.7,
    "gelu": lambda: lambda x: 0.5 * x * (1 + tf.tanh(0.7978845608 * (x + 0.044715 * x * x * x))),
    "dense-gelu": lambda: dense("gelu"),
    "dense-relu": lambda: dense("relu"),
    "convolution-normalized": convolved,
}


def inside(run):
    """Forward and gradient in one traced function."""
    return tf.function(lambda x: step(run, x), autograph=False)


def outside(run):
    """A traced forward, differentiated eagerly."""
    traced = tf.function(run, autograph=False)
    return lambda x: step(traced, x)


def nested(run):
    """A traced forward inside of a traced step."""
    traced = tf.function(run, autograph=False)
    return tf.function(lambda x: step(traced, x), autograph=False)


def step(run, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(run(x) ** 2)
    return loss, tape.gradient(loss, x)


@pytest.mark.parametrize("traced", [inside, outside, nested])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_region_is_rounded_as_its_recompute(function, traced):
    run = FUNCTIONS[function]()
    x = tf.constant(X)
    found = traced(unigrad.checkpoint(run))(x)
    for one, two in zip(found, step(run, x), strict=True):
        # The same operations, joined by the optimizer or not: a few roundings each.
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("traced", [inside, outside, nested])
def test_control_a_difference_is_still_told(traced):
    calls = []

    def changing(x):
        calls.append(None)
        return x * x * (0.7 if len(calls) == 1 else 0.70001)

    with pytest.raises(tf.errors.InvalidArgumentError, match="differs"):
        traced(unigrad.checkpoint(changing))(tf.constant(X))

"""Limits of the TensorFlow backend, as docs/design.md states them; each test fails once its limit is gone."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = tf.constant(np.random.default_rng(0).standard_normal((4, 3)).astype("float32"))


def dense():
    layer = layers.Dense(3)
    layer(X)
    return layer


def test_a_recompute_that_differs_in_a_trace_is_told_by_tensorflow():
    """The values are compared when the function runs, so the error is one of TensorFlow's."""
    layer, factor = dense(), [1.0]

    def unsteady(x):
        factor[0] += 1.0
        return layer(x) * factor[0]

    run = unigrad.checkpoint(unsteady, blocks=[layer])

    @tf.function
    def step(x):
        with unigrad.GradientCollector(layer) as collector:
            collector.backward(tf.reduce_sum(run(x)))
            return collector.gradients["weight"]

    with pytest.raises(tf.errors.InvalidArgumentError, match="recompute of a checkpointed region differs"):
        step(X)


@pytest.mark.parametrize(
    ("size", "places"),
    [(4, [0, 1]), (4, [0, 2]), (4, [2, 3]), (4, [0, 1, 2, 3]), (200_003, [0, 199_999]), (200_003, [7])],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_flipped_signs_are_noticed_in_a_trace(dtype, size, places):
    """C8: the highest bits of two words, each times an odd number, have the sum 0 in integers of their width."""
    weight, calls = tf.Variable(1.0, dtype=dtype), []
    signs = np.ones(size)
    signs[places] = -1

    def unsteady(x):
        calls.append(x)
        return weight * x * (tf.constant(signs, dtype) if len(calls) > 1 else 1.0)

    run = unigrad.checkpoint(unsteady)

    @tf.function
    def step(x):
        with unigrad.GradientCollector({"weight": weight}) as collector:
            collector.backward(tf.reduce_sum(run(x)))
            return collector.gradients["weight"]

    with pytest.raises(tf.errors.InvalidArgumentError, match="recompute of a checkpointed region differs"):
        step(tf.ones(size, dtype))


def test_what_leads_nowhere_is_kept_until_the_tape_goes():
    layer = dense()
    with unigrad.GradientCollector(layer, on_unused="ignore") as collector:
        hidden = tf.tanh(layer(X))
        alive = weakref.ref(hidden)
        tf.reduce_sum(hidden * hidden)
        del hidden
        gc.collect()
        assert alive() is not None
        collector.backward(tf.reduce_sum(layer(X)))
        gc.collect()
        assert alive() is None


def test_a_gradient_inside_a_region_ends_at_its_border():
    layer, outside = dense(), tf.Variable(2.0)

    def call(x):
        with unigrad.GradientCollector(layer) as inner:
            inner.backward(tf.reduce_sum(layer(x) ** 2), retain_graph=True)
        return x * inner.gradients["bias"]

    run = unigrad.checkpoint(call, blocks=[layer])
    with unigrad.GradientCollector({"outside": outside}) as collector:
        with pytest.raises(unigrad.UnsupportedError, match="border"):
            run(X * outside)
        collector.backward(tf.reduce_sum(X * outside))


def test_a_checkpointed_model_is_exported_with_its_checkpoints_switched_off(tmp_path):
    """A region takes note of the global generator of Keras, which belongs to no model, so that an export finds it untracked."""
    inputs = keras.Input((3,))
    layer = unigrad.checkpoint(layers.Dense(2))
    model = keras.Model(inputs, layer(inputs))
    with pytest.raises(AssertionError, match="untracked"):
        model.export(tmp_path / "with", verbose=False)
    layer.enabled = False
    model.export(tmp_path / "without", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "without")
    np.testing.assert_allclose(loaded.serve(X), model(X), rtol=1e-6)


def test_a_layer_that_writes_its_own_weights_is_refused_in_a_region():
    """C8: spectral normalization divides its kernel in each call in training, so that no recompute begins from the same one."""
    model = keras.Sequential([keras.layers.SpectralNormalization(keras.layers.Dense(3))])
    x = tf.ones((4, 5))
    model(x)
    run = unigrad.checkpoint(model)
    with (
        unigrad.GradientCollector(model) as collector,
        pytest.raises(unigrad.StaleGraphError, match=r"changes its own parameters in its forward \(0\.kernel\)"),
    ):
        collector.backward(tf.reduce_sum(run(x, training=True)))
    with unigrad.GradientCollector(model) as collector:
        collector.backward(tf.reduce_sum(run(x, training=False)))
    assert "0.kernel" in collector.gradients

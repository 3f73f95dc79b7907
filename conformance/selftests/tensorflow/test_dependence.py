"""What a loss depends on is found through all that TensorFlow records, not only through plain operations (G6, G10, C1, R1)."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = tf.constant(np.random.default_rng(0).standard_normal((4, 3)).astype("float32"))
ROWS = tf.constant(np.random.default_rng(1).standard_normal((4, 5, 3)).astype("float32"))


@tf.custom_gradient
def straight_through(x):
    return tf.round(x), lambda gradient: gradient


def through(call):
    """Return a model of two dense layers, the first of which is called by ``call(layer, x)``."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = layers.Dense(3), layers.Dense(3)

        def build(self, shape):
            self.inner.build(shape)
            self.outer.build(shape)
            self.built = True

        def call(self, x):
            return self.outer(x) + call(self.inner, x)

    return Model()


def read_before_use(layer, x):
    kernel, bias = tf.convert_to_tensor(layer.kernel.value), tf.convert_to_tensor(layer.bias.value)
    tf.matmul(x, kernel)
    return x * bias


def loop(layer, x):
    return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, tf.tanh(layer(y))), (0, x), maximum_iterations=3)[1]


WAYS = {
    "straight-through": lambda layer, x: straight_through(layer(x)),
    "recompute_grad": lambda layer, x: tf.recompute_grad(lambda y: tf.tanh(layer(y)))(x),
    "function": lambda layer, x: tf.function(lambda y: tf.tanh(layer(y)))(x),
    "while_loop": loop,
    "cond": lambda layer, x: tf.cond(tf.reduce_sum(x) < 1e9, lambda: tf.tanh(layer(x)), lambda: layer(x)),
    "map_fn": lambda layer, x: tf.map_fn(lambda row: tf.tanh(layer(row[None])[0]), x),
    "scan": lambda layer, x: tf.scan(lambda s, row: tf.tanh(layer(row[None])[0] + s), x, initializer=tf.zeros(3)),
    "vectorized_map": lambda layer, x: tf.vectorized_map(lambda row: tf.linalg.matvec(layer.kernel.value, row), x),
    "read-before-use": read_before_use,
}
RECURRENT = {
    "lstm": lambda: layers.LSTM(3, return_sequences=True),
    "bidirectional": lambda: layers.Bidirectional(layers.GRU(2)),
    "stacked": lambda: layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)]),
}
MODES = {"eager": lambda function: function, "traced": tf.function}


def collected(model, run, x, mode):
    @mode
    def step(x):
        with unigrad.GradientCollector(model, on_unused="ignore") as collector:
            collector.backward(tf.reduce_sum(tf.sin(run(x))))
            assert not collector.usage.outside
            return dict(collector.gradients)

    return {name: value.numpy() for name, value in step(x).items()}


def taken(model, x, mode):
    parameters = unigrad.wrap(model).parameters

    @mode
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(model(x)))
        found = tape.gradient(loss, [parameter.value for parameter in parameters.values()])
        return {name: value for name, value in zip(parameters, found, strict=True) if value is not None}

    return {name: tf.convert_to_tensor(value).numpy() for name, value in step(x).items()}


def check(model, x, mode):
    expected = taken(model, x, mode)
    for run in (model, unigrad.checkpoint(model)):
        found = collected(model, run, x, mode)
        assert sorted(found) == sorted(expected)
        for name, value in expected.items():
            # The same operations of the same tape; sums of at most 60 terms in another order.
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_the_gradients_are_those_of_a_tape(way, mode):
    model = through(WAYS[way])
    model.build((None, 3))
    check(model, X, MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_have_the_gradients_of_a_tape(kind, mode):
    model = keras.Sequential([RECURRENT[kind](), layers.Dense(2)])
    model.build((4, 5, 3))
    check(model, ROWS, MODES[mode])


@pytest.mark.parametrize("tape", [False, True], ids=["collector", "tape"])
@pytest.mark.parametrize("way", ["while_loop", "cond", "map_fn", "scan", "vectorized_map", "function"])
def test_a_region_in_the_body_of_a_loop(way, tape):
    """In a trace it is refused where its recompute would belong to another graph; eagerly, and in a function, it is right (C12)."""
    layer = layers.Dense(3)
    layer(X)

    def body(x):
        if way == "vectorized_map":
            return tf.vectorized_map(lambda row: run(row[None])[0], x)
        return WAYS[way](run, x)

    def step(x):
        if tape:
            with tf.GradientTape() as own:
                loss = tf.reduce_sum(body(x) ** 2)
            return own.gradient(loss, layer.kernel.value)
        with unigrad.GradientCollector(layer) as collector:
            collector.backward(tf.reduce_sum(body(x) ** 2))
            return collector.gradients["weight"]

    run = layer
    expected = step(X)
    run = unigrad.checkpoint(layer)
    if way != "vectorized_map":  # which always traces
        # Sums of at most twelve terms, in another order.
        np.testing.assert_allclose(step(X), expected, rtol=1e-5, atol=1e-6)
    if way == "function":
        np.testing.assert_allclose(tf.function(step)(X), expected, rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(unigrad.UnsupportedError, match="body"):
            (step if way == "vectorized_map" else tf.function(step))(X)


@pytest.mark.parametrize("way", ["while_loop", "map_fn", "function"])
def test_a_random_operation_in_the_body_of_a_loop_is_refused_in_a_trace(way):
    """Op callbacks are told of the loop, not of what it does (C2, C12)."""
    layer = layers.Dense(3)
    layer(X)

    def noisy(y):
        return layer(y) * tf.random.uniform(tf.shape(y))

    run = unigrad.checkpoint(lambda x: WAYS[way](noisy, x), blocks=[layer])

    @tf.function
    def step(x):
        with unigrad.GradientCollector(layer, on_unused="ignore"):
            run(x)

    with pytest.raises(unigrad.UnsupportedError, match="RandomUniform"):
        step(X)


def test_what_the_record_has_missed_is_an_error_and_not_a_missing_gradient(monkeypatch):
    """The last resort: TensorFlow's tape is asked for the variables that, as far as was recorded, no loss depends on."""
    model = through(WAYS["straight-through"])
    model.build((None, 3))
    monkeypatch.setattr("unigrad_tensorflow.graph.Recorder.record", lambda *_: None)
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        loss = tf.reduce_sum(model(X))
        with pytest.raises(unigrad.UnsupportedError, match="has not seen"):
            collector.backward(loss)
        assert not collector.gradients

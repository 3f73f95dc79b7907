"""Collector, checkpoint and microbatch inside tf.function: one trace, and the values of the eager run (G19, C12, M6)."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")


def model():
    """Dense layers, batch normalization and dropout, built, always with the same values."""
    keras.utils.set_random_seed(1)
    trunk = keras.Sequential([layers.Dense(8, activation="tanh"), layers.BatchNormalization(), layers.Dropout(0.5)])
    head = layers.Dense(2)
    head(trunk(tf.zeros((1, 4))))
    return trunk, head


def steps(wrap, compiled, options=None, count=2):
    """Return losses, gradients, buffers and seeds of some steps, and how often the step was traced."""
    trunk, head = model()
    block = unigrad.join(trunk=trunk, head=head)
    unigrad.wrap(trunk).train()
    run = wrap(trunk)
    traces = []

    def step(x):
        traces.append(None)
        with unigrad.GradientCollector(block, accumulate="add") as collector:
            for _ in range(2):
                collector.backward(tf.reduce_mean(head(run(x, training=True)) ** 2))
            return dict(collector.gradients)

    call = tf.function(step, **(options or {})) if compiled else step
    found = []
    for _ in range(count):
        gradients = {name: value.numpy() for name, value in call(tf.constant(X)).items()}
        seed = trunk.layers[2].seed_generator.state.numpy()
        found.append({**gradients, **{f"state {name}": value for name, value in block.state().items()}, "seed": seed})
    return found, len(traces)


def near(left, right):
    for one, two in zip(left, right, strict=True):
        assert sorted(one) == sorted(two)
        for name, value in one.items():
            # The same operations in another order of sums, fused: a few roundings.
            np.testing.assert_allclose(value, two[name], rtol=2e-5, atol=2e-6, err_msg=name)


WRAPS = {
    "plain": lambda trunk: trunk,
    "checkpoint": unigrad.checkpoint,
    "microbatch": lambda trunk: unigrad.microbatch(trunk, 2, allow_coupled=True),
}


@pytest.mark.parametrize("name", WRAPS)
def test_a_traced_step_is_the_eager_one_and_is_traced_once(name):
    eager, _ = steps(WRAPS[name], False)
    traced, count = steps(WRAPS[name], True)
    near(eager, traced)
    assert count == 1


def test_checkpoint_under_xla_is_the_plain_run_under_xla():
    plain, _ = steps(WRAPS["plain"], True, {"jit_compile": True})
    rerun, count = steps(WRAPS["checkpoint"], True, {"jit_compile": True})
    near(plain, rerun)
    assert count == 1


def test_a_checkpoint_in_a_function_differentiated_from_outside():
    """The user's own loop: the forward is traced, the tape is not."""
    found = []
    for wrap in (WRAPS["plain"], WRAPS["checkpoint"]):
        trunk, head = model()
        run = wrap(trunk)
        forward = tf.function(lambda x, run=run, head=head: head(run(x, training=True)))
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(forward(tf.constant(X)) ** 2)
            gradients = tape.gradient(loss, [v.value for v in trunk.trainable_variables])
        found.append([value.numpy() for value in gradients] + [v.numpy() for v in trunk.non_trainable_variables])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)


def test_unused_stays_absent_in_a_trace():
    trunk, head = model()
    other = layers.Dense(3)
    other(tf.zeros((1, 4)))
    block = unigrad.join(head=head, other=other)
    names = []

    @tf.function
    def step(x):
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            other(x)
            collector.backward(tf.reduce_sum(head(trunk(x))))
            names.append((sorted(collector.gradients), collector.usage.disconnected))
        return collector.gradients["head.weight"]

    step(tf.constant(X))
    assert names == [(["head.bias", "head.weight"], ("other.weight", "other.bias"))]


def test_a_collector_opened_outside_is_refused_inside():
    _, head = model()
    with unigrad.GradientCollector(head, on_unused="ignore") as collector:

        @tf.function
        def step(x):
            collector.backward(tf.reduce_sum(head(x)))

        with pytest.raises(unigrad.UnsupportedError, match="outside"):
            step(tf.zeros((2, 8)))


def test_a_released_graph_is_refused_in_a_trace():
    _, head = model()

    @tf.function
    def step(x):
        with unigrad.GradientCollector(head) as collector:
            loss = tf.reduce_sum(head(x))
            collector.backward(loss)
            collector.backward(loss)

    with pytest.raises(unigrad.GraphReleasedError, match="retain_graph"):
        step(tf.zeros((2, 8)))


def test_a_batch_of_unknown_size_is_checkpointed_and_not_split():
    trunk, _ = model()
    signature = {"input_signature": [tf.TensorSpec((None, 4))]}
    run = unigrad.checkpoint(trunk)
    assert tf.function(lambda x: run(x, training=True), **signature)(tf.constant(X)).shape == (6, 8)
    split = unigrad.microbatch(trunk, 2, allow_coupled=True)
    with pytest.raises(unigrad.UnsupportedError, match="batch"):
        tf.function(lambda x: split(x, training=True), **signature)(tf.constant(X))


def test_a_traced_value_is_not_read():
    _, head = model()

    @tf.function
    def step(x):
        return unigrad.wrap(head).backend.arrays.to_numpy(head(x))

    with pytest.raises(unigrad.UnsupportedError, match="no values yet"):
        step(tf.zeros((2, 8)))


def test_a_function_inside_a_region_is_recomputed_with_its_variables():
    """From the second call on, a traced function tells of its variables only to tapes."""
    _, head = model()
    traced = tf.function(lambda x: head(x))
    run = unigrad.checkpoint(lambda x: tf.tanh(traced(x)), blocks=[head])
    found = []
    for call in (lambda x: tf.tanh(head(x)), run, run):
        with unigrad.GradientCollector(head) as collector:
            collector.backward(tf.reduce_sum(call(tf.ones((2, 8)))))
        found.append({name: value.numpy() for name, value in collector.gradients.items()})
    for again in found[1:]:
        assert sorted(again) == ["bias", "weight"]
        for name, value in found[0].items():
            np.testing.assert_allclose(again[name], value, rtol=1e-6)


def test_a_captured_tensor_in_a_trace_is_refused_where_it_needs_a_gradient():
    """No tape is open while a function is traced that is differentiated from outside."""
    _, head = model()
    scale = tf.constant(2.0)

    @tf.function
    def wrong(x):
        hidden = head(x)
        return unigrad.checkpoint(lambda y: tf.tanh(y * hidden), blocks=[head])(x[:, :2])

    @tf.function
    def right(x):
        size = tf.cast(tf.shape(x)[0], tf.float32)
        return unigrad.checkpoint(lambda y: head(y) * scale / size, blocks=[head])(x)

    with pytest.raises(unigrad.CapturedTensorError):
        wrong(tf.ones((2, 8)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(right(tf.ones((2, 8))))
    assert tape.gradient(loss, head.bias.value).numpy().tolist() == [2, 2]

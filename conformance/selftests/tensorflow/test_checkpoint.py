"""What TensorFlow can't replay is refused by name, and its own idioms go through a region (C5, C7, C10, C12)."""

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


DRAWS = {
    "RandomUniform": lambda: tf.random.uniform((4, 3)),
    "RandomStandardNormal": lambda: tf.random.normal((4, 3)),
    "RandomShuffle": lambda: tf.random.shuffle(tf.ones((4, 3))),
    "TruncatedNormal": lambda: tf.random.truncated_normal((4, 3)),
}


@pytest.mark.parametrize("operation", DRAWS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "inside-a-function"])
def test_a_stateful_random_operation_is_refused_by_name(operation, traced):
    layer, draw = dense(), DRAWS[operation]
    inner = tf.function(draw) if traced else draw
    run = unigrad.checkpoint(lambda x: layer(x) * inner(), blocks=[layer])
    with (
        unigrad.GradientCollector(layer, on_unused="ignore"),
        pytest.raises(unigrad.UnsupportedError, match=operation),
    ):
        run(X)


def test_dropout_of_tensorflow_is_refused_and_that_of_keras_is_not():
    layer = dense()
    for function, refused in (
        (lambda x: tf.nn.dropout(layer(x), 0.5), True),
        (lambda x: keras.random.dropout(layer(x), 0.5), False),
    ):
        with unigrad.GradientCollector(layer, on_unused="ignore") as collector:
            run = unigrad.checkpoint(function, blocks=[layer])
            if refused:
                with pytest.raises(unigrad.UnsupportedError, match=r"keras\.random"):
                    run(X)
            else:
                collector.backward(tf.reduce_sum(run(X)))


def test_a_generator_of_tensorflow_is_replayed_where_it_is_known():
    found = []
    for wrap in (lambda module: module, unigrad.checkpoint):

        class Noisy(tf.Module):
            def __init__(self):
                super().__init__()
                self.generator = tf.random.Generator.from_seed(3)
                self.w = tf.Variable(tf.ones((3,)))

            def __call__(self, x):
                return tf.tanh(x * self.w) * self.generator.normal((4, 3))

        module = Noisy()
        block = unigrad.wrap(module)
        assert list(block.random_state) == ["generator"]
        assert list(block.buffers) == []
        run = wrap(module)
        with unigrad.GradientCollector(module) as collector:
            loss = tf.reduce_sum(run(X))
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        found.append((collector.gradients["w"].numpy(), module.generator.state.numpy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_layer_created_on_each_call_is_refused_by_name():
    layer = dense()
    run = unigrad.checkpoint(lambda x: layers.Dense(2, name="fresh")(layer(x)), blocks=[layer])
    with unigrad.GradientCollector(layer) as collector:
        loss = tf.reduce_sum(run(X))
        with pytest.raises(unigrad.CreatedParameterError, match=r"kernel|seed"):
            collector.backward(loss)
        assert not collector.gradients
        collector.backward(tf.reduce_sum(layer(X)))


def test_the_users_own_tape_is_served():
    layer = dense()
    found = []
    for call in (layer, unigrad.checkpoint(layer)):
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(tf.tanh(call(X)))
        found.append([value.numpy() for value in tape.gradient(loss, [X, layer.kernel.value, layer.bias.value])])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_tape_of_the_user_inside_a_region_is_right():
    layer = dense()

    def penalty(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.tanh(layer(x)))
        return tape.gradient(y, x)

    found = []
    for call in (penalty, unigrad.checkpoint(penalty, blocks=[layer])):
        with unigrad.GradientCollector(layer) as collector:
            value = call(X)
            collector.backward(tf.reduce_sum(value**2))
        found.append([value.numpy(), *(gradient.numpy() for gradient in collector.gradients.values())])
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_a_captured_tensor_under_the_users_own_tape_is_refused():
    layer = dense()
    with tf.GradientTape():
        hidden = layer(X)
        run = unigrad.checkpoint(lambda x: tf.tanh(x * hidden), blocks=[layer])
        with pytest.raises(unigrad.CapturedTensorError, match="hidden"):
            run(X)


def test_a_variable_of_no_block_that_a_function_traced_before_uses_gets_its_gradient():
    free = tf.Variable(2.0)
    traced = tf.function(lambda x: x * free)
    traced(X)
    run = unigrad.checkpoint(lambda x: tf.tanh(traced(x)))
    with unigrad.GradientCollector({"free": free}) as collector:
        collector.backward(tf.reduce_sum(run(X)))
    slope = (X / tf.cosh(2 * X) ** 2).numpy().sum()
    # A sum of 12 values, each of a few roundings.
    np.testing.assert_allclose(collector.gradients["free"].numpy(), slope, rtol=1e-5)


class Counter(tf.Module):
    def __init__(self):
        super().__init__()
        self.count = tf.Variable(0.0, trainable=False, name="count")

    def __call__(self, x):
        self.count.assign(self.count + 1.0)
        return x


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_a_variable_of_no_block_that_a_region_changes_is_refused_by_name(traced):
    """tf.Module has no hooks: what a function calls can be seen in its closure, or where a Block calls it, but not below that."""
    layer, counter = dense(), Counter()
    nest = [[[[[[[[[counter]]]]]]]]]

    def call(x):
        inner = nest
        while isinstance(inner, list):
            inner = inner[0]
        return layer(inner(x))

    def step(x, **options):
        with unigrad.GradientCollector(layer, on_unused="ignore") as collector:
            collector.backward(tf.reduce_sum(unigrad.checkpoint(call, **options)(x)))
            return dict(collector.gradients)

    run = tf.function(step, autograph=False) if traced else step
    with pytest.raises(unigrad.UnsupportedError, match="count"):
        run(X)
    before = counter.count.numpy()
    assert len(run(X, blocks=[layer, counter])) == 2
    assert counter.count.numpy() == before + 1


@pytest.mark.parametrize("where", ["body", "branch", "loop"])
def test_a_variable_that_a_function_traced_before_changes_is_refused_by_name(where):
    """Its operations are not told of; its definition says which of its inputs it writes."""
    layer, count, frozen = dense(), tf.Variable(0.0, trainable=False, name="count"), tf.Variable(1.0, trainable=False)

    @tf.function
    def traced(x):
        if where == "body":
            count.assign_add(1.0)
        elif where == "branch":
            tf.cond(tf.reduce_sum(x) < 1e9, lambda: count.assign_add(1.0), lambda: count.assign_add(2.0))
        else:
            tf.while_loop(lambda i: i < 2, lambda i: (i + tf.cast(count.assign_add(1.0) > 0, tf.int32),), (0,))
        return x * frozen

    traced(X)
    run = unigrad.checkpoint(lambda x: layer(traced(x)), blocks=[layer])
    with (
        unigrad.GradientCollector(layer, on_unused="ignore"),
        pytest.raises(unigrad.UnsupportedError, match="'count"),
    ):
        run(X)


@pytest.mark.parametrize("draw", ["normal", "skip"])
def test_a_generator_of_no_block_is_refused_until_it_is_registered(draw):
    layer, generators = dense(), {"one": tf.random.Generator.from_seed(1)}
    held = [[[[[[[[[generators]]]]]]]]]

    def noisy(x):
        inner = held
        while isinstance(inner, list):
            inner = inner[0]
        if draw == "skip":
            inner["one"].skip(3)
            return layer(x)
        return layer(x) * inner["one"].normal((4, 3))

    run = unigrad.checkpoint(noisy, blocks=[layer])
    with unigrad.GradientCollector(layer, on_unused="ignore") as collector:
        with pytest.raises(unigrad.UnsupportedError, match="register the generator"):
            run(X)
        unigrad.register_generator(generators["one"])
        collector.backward(tf.reduce_sum(run(X)))
    assert len(collector.gradients) == 2

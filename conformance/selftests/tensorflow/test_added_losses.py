"""What layers of Keras add as losses in a region is what they add without it (clauses C1, C5, M1, M2)."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")


class Adding(keras.Model):
    """Adds the squares of its outputs."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        y = self.dense(x)
        self.add_loss(tf.reduce_sum(y**2))
        return y


class Reading(keras.Model):
    """Returns what the model in it has added."""

    def __init__(self):
        super().__init__()
        self.adding = Adding()

    def call(self, x):
        return self.adding(x) + tf.add_n(self.adding.losses)


def made(kind):
    keras.utils.set_random_seed(0)
    model = kind()
    model(X)
    return model


def found(model, run, loss):
    """Return the losses of a model after a run, and the gradients of a loss, by a collector and by TensorFlow's own tape."""
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        output = run(tf.constant(X))
        held = list(model.losses)
        collector.backward(loss(model, output))
        assert [id(one) for one in model.losses] == [id(one) for one in held]  # a recompute adds and drops none
    with tf.GradientTape() as tape:
        value = loss(model, run(tf.constant(X)))
    native = tape.gradient(value, [variable.value for variable in model.trainable_variables])
    return [float(one) for one in held], *(value.numpy() for value in (*collector.gradients.values(), *native))


def same(left, right):
    for one, two in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, two)


def added(model, output):
    return tf.add_n(model.losses)


def all_of(model, output):
    return tf.reduce_sum(output) + tf.add_n(model.losses)


FUNCTIONS = {
    "twice": lambda model, z: (model(z), model(2 * z))[1],
    "twice, and the first used": lambda model, z: model(z) * model(2 * z),
    "a layer of it afterwards": lambda model, z: (model(z), model.dense(z))[0],
    "a region in it": lambda model, z: (model(z), unigrad.checkpoint(model, verify=False)(2 * z))[1],
    "a region before": lambda model, z: (unigrad.checkpoint(model)(2 * z), model(z))[1],
    "parts in it": lambda model, z: unigrad.microbatch(model, 2)(z),
    "read": lambda model, z: model(z) + sum(model.losses),
    "read between": lambda model, z: model(z) + sum(model.losses) * model(2 * z),
}


def traced(model, run, loss):
    """Return the losses and the gradients of a loss, of a step that TensorFlow traces."""

    def step():
        with unigrad.GradientCollector(model, on_unused="ignore") as collector:
            collector.backward(loss(model, run(tf.constant(X))))
            return [tf.identity(one) for one in model.losses], dict(collector.gradients)

    losses, gradients = tf.function(step)()
    return [float(one) for one in losses], *(gradients[name].numpy() for name in sorted(gradients))


@pytest.mark.parametrize("how", [found, traced])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_region_leaves_the_losses_of_the_plain_call(kind, how):
    """C1, C5: Keras drops the losses of a model that is called again, inside of a region too."""
    results = []
    for checkpointed in (False, True):
        model = made(Adding)
        run = functools.partial(FUNCTIONS[kind], model)
        results.append(how(model, unigrad.checkpoint(run, blocks=[model]) if checkpointed else run, all_of))
    same(*results)


WRAPPED = {
    "checkpoint": lambda model: unigrad.checkpoint(model),
    "microbatch": lambda model: unigrad.microbatch(model, 2),
    "microbatch of a function": lambda model: unigrad.microbatch(lambda z: model(z), 2, blocks=[model]),
}


@pytest.mark.parametrize("wrap", WRAPPED)
def test_a_model_may_read_what_a_layer_in_it_has_added(wrap):
    """C5, M1: a part sees its own losses alone, as in the loop over parts."""
    plain, model = made(Reading), made(Reading)
    sizes = 1 if wrap == "checkpoint" else 3
    parts = np.split(X, sizes)
    *_, expected = found(plain, lambda z: tf.concat([plain(part) for part in parts], 0), lambda _, y: tf.reduce_sum(y))
    *_, gradient = found(model, WRAPPED[wrap](model), lambda _, y: tf.reduce_sum(y))
    # contributions of three parts, each a sum of two outputs and two losses, in another order
    bound = 12 * np.finfo("float32").eps * np.abs(expected).max()
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("wrap", ["microbatch", "microbatch of a function"])
def test_the_losses_of_all_parts_are_kept(wrap, recorded):
    """M2: the squares of a batch are those of its parts, whether a layer or a function that calls it is run in parts."""
    plain, model = made(Adding), made(Adding)
    run = WRAPPED[wrap](model)
    if not recorded:
        for _ in range(2):
            run(tf.constant(X))
        expected = [(plain(part).numpy() ** 2).sum() for part in np.split(X, 3)]
        np.testing.assert_allclose([float(one) for one in model.losses], expected, rtol=1e-6)
        return
    whole, parts = found(plain, plain, added), found(model, run, added)
    assert len(parts[0]) == 3
    for one, two in zip([sum(whole[0]), *whole[1:]], [sum(parts[0]), *parts[1:]], strict=True):
        # sums of 18 squares of values up to the largest, in another order
        np.testing.assert_allclose(one, two, rtol=0, atol=18 * np.finfo("float32").eps * np.abs(one).max())


def test_a_model_called_twice_in_a_part_leaves_its_last_losses():
    """M1, M2."""
    plain, model = made(Adding), made(Adding)
    run = unigrad.microbatch(lambda z: (model(z), model(2 * z))[1], 2, blocks=[model])
    losses = found(model, run, added)[0]
    expected = [(plain(2 * part).numpy() ** 2).sum() for part in np.split(X, 3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_an_exception_in_a_region_leaves_no_losses_of_it():
    """C11: they were recorded by nobody."""
    model = made(Adding)

    def function(z):
        model(z)
        raise LookupError

    with unigrad.GradientCollector(model), pytest.raises(LookupError):
        unigrad.checkpoint(function, blocks=[model])(tf.constant(X))
    assert model.losses == []

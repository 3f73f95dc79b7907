"""Regions in a traced function: a recompute has a turn, and inside it the gradients of parameters have theirs (C1, C12, Y2)."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unigrad

X = np.ones((3, 4), "float32")
REGIONS, DEEP = 2, 3


def operations(**options):
    """Return the operations of a traced step over several regions, in the order in which they were built."""
    segments = [keras.Sequential([layers.Dense(4, activation="tanh") for _ in range(DEEP)]) for _ in range(REGIONS)]
    for segment in segments:
        segment.build((None, 4))
    run = keras.Sequential([unigrad.checkpoint(segment) for segment in segments])
    variables = [variable.value for segment in segments for variable in segment.trainable_variables]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(run(x)))
        return tape.gradient(loss, variables)

    return tf.function(step, **options).get_concrete_function(tf.constant(X)).graph.get_operations()


def behind(operation):
    """Return the names of all that must have run before an operation starts."""
    found, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        for below in (*current.control_inputs, *(tensor.op for tensor in current.inputs)):
            if below.name not in found:
                found.add(below.name)
                waiting.append(below)
    return found


@pytest.fixture(scope="module")
def traced():
    return operations()


def of_type(traced, kind):
    return [operation for operation in traced if operation.type == kind]


def test_a_recompute_waits_for_what_comes_back_to_it(traced):
    values = of_type(traced, "Tanh")
    forward, recomputed = values[: REGIONS * DEEP], values[REGIONS * DEEP :]
    assert len(recomputed) == len(forward)
    assert all(forward[-1].name in behind(operation) for operation in recomputed)  # the gradient of the loss needs it


def test_a_recompute_waits_until_the_one_before_is_through(traced):
    before = {operation.name for operation in of_type(traced, "BiasAddGrad")[:DEEP]}
    second = of_type(traced, "Tanh")[-DEEP:]
    assert all(before <= behind(operation) for operation in second)


def test_the_backward_of_a_layer_waits_for_the_gradients_of_the_layers_after_it(traced):
    gradients, layers_back = of_type(traced, "BiasAddGrad"), of_type(traced, "TanhGrad")
    assert len(gradients) == len(layers_back) == REGIONS * DEEP
    for place, operation in enumerate(layers_back):
        assert {gradient.name for gradient in gradients[:place]} <= behind(operation)


def test_a_backward_waits_until_the_recompute_is_found_to_be_the_forward(traced):
    checks = [operation.name for operation in of_type(traced, "Assert")]
    assert len(checks) == REGIONS
    for place, operation in enumerate(of_type(traced, "TanhGrad")):
        assert checks[place // DEEP] in behind(operation)


@pytest.mark.parametrize("compiled", [False, True])
def test_inputs_are_copied_for_xla_alone(compiled):
    """XLA knows no order but that of data; elsewhere an input that the caller holds too would be there twice."""
    added = of_type(operations(jit_compile=compiled), "SelectV2")
    assert len(added) == REGIONS * compiled


class _Private(layers.Dense):
    """A layer whose name begins with an underscore, as its class does."""


def test_a_layer_whose_name_needs_another_around_it_is_recomputed_in_a_trace():
    segment = keras.Sequential([_Private(4)])
    segment.build((None, 4))
    run = keras.Sequential([unigrad.checkpoint(segment)])

    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(run(x))
        return tape.gradient(loss, segment.layers[0].kernel.value)

    assert np.array_equal(tf.function(gradient)(tf.constant(X)), np.full((4, 4), 3.0))

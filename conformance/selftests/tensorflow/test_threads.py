"""Collectors in several threads at once, over one model (G16): what TensorFlow has once for all threads stays with the last of them."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from tensorflow.python.eager import execute

import unigrad

X = tf.constant(np.random.default_rng(0).standard_normal((4, 3)).astype("float32"))
WRAPS = {
    "plain": lambda net: net,
    "checkpoint": unigrad.checkpoint,
    "microbatch": lambda net: unigrad.microbatch(net, 2),
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_gradients_in_six_threads_are_those_of_one(wrap):
    """The first thread to leave must not take the op callbacks from the others."""
    net = keras.Sequential([layers.Dense(4, activation="tanh"), layers.Dense(2)])
    net.build((None, 3))
    run = WRAPS[wrap](net)
    before = execute.execute

    def gradients(number):
        with unigrad.GradientCollector(net) as collector:
            collector.backward(tf.reduce_sum(run(X * (number + 1.0)) ** 2))
        return {name: value.numpy() for name, value in collector.gradients.items()}

    expected = [gradients(number) for number in range(6)]
    for _ in range(8):
        found = {}
        threads = [
            threading.Thread(target=lambda number=number, found=found: found.update({number: gradients(number)}))
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == list(range(6))
        for number, one in enumerate(expected):
            assert sorted(found[number]) == sorted(one)
            for name, value in one.items():
                np.testing.assert_array_equal(found[number][name], value)
    assert execute.execute is before

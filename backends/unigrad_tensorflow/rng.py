"""The global generator of Keras, and generators of a model's own. See ``unigrad.protocols.RngModule``."""

from __future__ import annotations

import random
import threading
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad_tensorflow.arrays import value
from unigrad_tensorflow.graph import register_random
from unigrad_tensorflow.private import present_seed_generator, raw, set_seed_generator, stop_recording


def _global() -> Any:
    """Return the variable of the global generator, which Keras makes at the first draw."""
    generator = present_seed_generator()
    if generator is None:
        # A tf.function that sees a variable being made is traced a second time; it sees those of its thread.
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(keras.random.SeedGenerator()))
        before = random.getstate()  # from which Keras draws a seed
        thread.start()
        thread.join()
        random.setstate(before)
        generator = set_seed_generator(made[0])
    register_random(generator.state)
    return generator.state


def seed(seed: int) -> None:
    """Start the global generator anew, in place, so that functions traced before follow; and seed TensorFlow's own operations."""
    tf.random.set_seed(seed)
    raw(_global()).assign([seed, 0])


def snapshot() -> Any:
    """Return the state of the global generator."""
    return value(_global())


def restore(state: Any) -> None:
    """Set the state of the global generator."""
    with stop_recording():
        raw(_global()).assign(state)


def is_generator(obj: object) -> bool:
    """Whether ``obj`` is a generator of Keras or of TensorFlow."""
    return isinstance(obj, keras.random.SeedGenerator | tf.random.Generator)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator."""
    register_random(generator.state)
    return value(generator.state)


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator."""
    with stop_recording():
        raw(generator.state).assign(state)


def to_portable(state: Any) -> Any:
    """Return a state as bytes, the lowest of each number first."""
    return np.frombuffer(state.numpy().astype("<i8").tobytes(), np.uint8).copy()


def from_portable(array: Any) -> Any:
    """Return the state of which ``to_portable`` made the bytes; ``ValueError`` if they are not one."""
    data = np.asarray(array, np.uint8).tobytes()
    if not data or len(data) % 8:
        raise ValueError("these bytes are not the random state of Keras")
    return tf.constant(np.frombuffer(data, "<i8").astype(np.int64))

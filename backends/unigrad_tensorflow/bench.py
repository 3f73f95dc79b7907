"""TensorFlow's own idiom, for `unigrad bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad_tensorflow.private import raw

BOUNDS = {
    "step, large": 1.10,
    "unrelated": 1.30,
    "checkpoint, time": 1.10,
    "checkpoint, peak": 1.05,
    "checkpoint / plain, peak": 0.57,
    "compiled checkpoint / plain, peak": 0.47,
    "microbatch with dropout, peak": 0.45,
}
"""What a figure may be at most."""
GROUP = 200
"""Keras finds the order of a model's layers by recursion, which Python ends at a thousand."""


class _Dropping(keras.layers.Dropout):  # type: ignore[misc]  # Keras has no types
    """Dropout in a call without a mode too."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return super().call(inputs, training=True)


def threads(count: int) -> dict[str, str]:
    """Return what a process with this many inter-op threads has in its environment."""
    return {"TF_NUM_INTEROP_THREADS": str(count)}


def stack(layers: int, width: int, activation: str | None, dropout: float = 0.0) -> Any:
    """Return dense layers with the activation, each followed by dropout, built."""
    parts: list[Any] = []
    for _ in range(layers):
        parts.append(keras.layers.Dense(width, activation=activation))
        if dropout:
            parts.append(_Dropping(dropout))
    groups = [keras.Sequential(parts[start : start + GROUP]) for start in range(0, len(parts), GROUP)]
    model = groups[0] if len(groups) == 1 else keras.Sequential(groups)
    model.build((None, width))
    return model


def data(batch: int, width: int) -> Any:
    """Return a float32 input."""
    return tf.constant(np.random.default_rng(0).standard_normal((batch, width)).astype("float32"))


def loss(output: Any) -> Any:
    """Return the mean of squares."""
    return tf.reduce_mean(tf.square(output))


def gradients(model: Callable[[Any], Any], parameters: Sequence[Any]) -> Callable[[Any], list[Any]]:
    """Return forward under a tape, and its gradients, as a function of the input."""
    variables = [raw(parameter) for parameter in parameters]

    def compute(x: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            value = loss(model(x))
        found: list[Any] = tape.gradient(value, variables)
        return found

    return compute


def compiled(function: Callable[[Any], list[Any]], x: Any) -> Callable[[], None]:
    """Return a call of the traced function."""
    traced = tf.function(function)
    return lambda: traced(x)


def step(model: Callable[[Any], Any], parameters: Sequence[Any], x: Any) -> Callable[[], None]:
    """Return forward under a tape, and its gradients."""
    compute = gradients(model, parameters)

    def run() -> None:
        compute(x)

    return run


def input_step(model: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    """Return the gradient of the input alone; the variables need not be watched."""

    def run() -> None:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(x)
            value = loss(model(x))
        tape.gradient(value, x)

    return run


def recompute(segments: Sequence[Any]) -> Callable[[Any], Any]:
    """Run the segments under tf.recompute_grad."""
    wrapped = [tf.recompute_grad(segment) for segment in segments]

    def run(x: Any) -> Any:
        for segment in wrapped:
            x = segment(x)
        return x

    return run


def chain(segments: Sequence[Any]) -> Any:
    """Return the segments in order as one model; such a facade in the place of a layer stays one."""
    return keras.Sequential(list(segments))


def unrelated(count: int) -> list[Any]:
    """Return small variables."""
    return [tf.Variable(np.ones(2, "float32")) for _ in range(count)]

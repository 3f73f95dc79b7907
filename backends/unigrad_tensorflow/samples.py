"""The suite's native test material. See ``unigrad.samples.Samples``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad.errors import UnsupportedError
from unigrad.samples import NoSampleError
from unigrad_tensorflow.arrays import assign, from_numpy
from unigrad_tensorflow.private import raw, stop_recording
from unigrad_tensorflow.sample_layers import Model, make_layer
from unigrad_tensorflow.sample_operations import Operations

# Keras otherwise raises exceptions of users anew, with another message.
keras.config.disable_traceback_filtering()

operations = Operations()

conventions: Mapping[str, str] = {"running_variance": "biased", "in_place": "no"}


def tensor(array: Any, dtype: str | None = None) -> Any:
    """Return a tensor with a copy of the values."""
    made = from_numpy(array)
    return made if dtype is None else tf.cast(made, dtype)


def leaf(array: Any, dtype: str | None = None) -> Any:
    """Return a trainable variable that belongs to no model."""
    return tf.Variable(tensor(array, dtype), trainable=True)


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> Any:
    """Return a layer with named members and the given forward."""
    return Model(forward, parameters or {}, buffers or {}, layers or {}, generators or {})


def layer(kind: str, **config: Any) -> Any:
    """Return a layer of a kind with the given values."""
    return make_layer(kind, config)


def set_buffer(model: Any, name: str, value: Any) -> None:
    """Write values into a buffer."""
    getattr(model, name).assign(value)


def own_normal(generator: Any, shape: Sequence[int]) -> Any:
    """Draw standard normal noise from a generator of one's own."""
    return keras.random.normal(tuple(shape), seed=generator)


def generator(seed: int) -> Any:
    """Return a generator that belongs to no model."""
    return keras.random.SeedGenerator(seed)


def no_grad() -> AbstractContextManager[Any]:
    """Return TensorFlow's own way to stop all recording in a thread."""
    return stop_recording()


def mixed_precision(dtype: str) -> AbstractContextManager[Any]:
    """Raise: Keras has mixed precision by policies that a layer is made with, and no context."""
    raise UnsupportedError(
        f"backend 'tensorflow' has no mixed-precision context, so none in {dtype}; give layers a dtype policy"
    )


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Gradient of a scalar function at ``x`` by TensorFlow's own idiom."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


class _SGD(keras.optimizers.SGD):
    """Keras' own, whose decay is added to the gradient as on the other backends."""

    def __init__(self, rate: float, momentum: float, decay: float) -> None:
        super().__init__(rate, momentum=momentum)
        self._decay = decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Do the step of one variable."""
        if self._decay:
            gradient = gradient + self._decay * tf.convert_to_tensor(variable)
        super().update_step(gradient, variable, learning_rate)


class _AdamW(keras.optimizers.AdamW):
    """Keras' own, with its numbers in the precision of the variable, and epsilon and the count of steps as on the other backends.

    Keras counts the steps of all variables together, also those in which a variable had no gradient.
    """

    def build(self, variables: Any) -> None:
        """Add the counts."""
        made = self.built
        super().build(variables)
        if not made:
            self._counts = [self.add_variable_from_reference(variable, name="count") for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Do the step of one variable."""
        index = self._get_variable_index(variable)
        mean, square, count = (raw(slots[index]) for slots in (self._momentums, self._velocities, self._counts))
        kind = count.dtype
        one, rate = tf.ones((), kind), tf.cast(learning_rate, kind)
        first, second, epsilon = (tf.constant(number, kind) for number in (self.beta_1, self.beta_2, self.epsilon))
        gradient = tf.cast(gradient, kind)
        count.assign_add(tf.ones_like(count))
        mean.assign_add((one - first) * (gradient - mean))
        square.assign_add((one - second) * (gradient * gradient - square))
        middle = mean / (one - tf.pow(first, count))
        spread = tf.sqrt(square / (one - tf.pow(second, count)))
        raw(variable).assign_sub(rate * middle / (spread + epsilon))


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of stochastic gradient descent."""
    return lambda parameters: _SGD(rate, momentum, decay)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of AdamW."""
    return lambda parameters: _AdamW(rate, weight_decay=decay, epsilon=1e-8)


def change(parameter: Any, array: Any) -> None:
    """Write new values as an optimizer does."""
    assign(parameter, np.asarray(array))


def change_hidden(parameter: Any, array: Any) -> None:
    """Raise: a variable's values are reached through its own methods alone."""
    raise NoSampleError("writing a variable in a way that TensorFlow does not notice")


def storage_alive(tensor: Any) -> Callable[[], bool]:
    """Return a function that tells whether the tensor is alive."""
    reference = weakref.ref(tensor)
    return lambda: reference() is not None


def shared_tensor(array: Any) -> Any:
    """Raise: TensorFlow takes foreign memory through DLPack, and aborts the process at the first use of what is not aligned."""
    raise NoSampleError("a tensor that shares the memory of an array of NumPy")

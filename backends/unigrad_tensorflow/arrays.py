"""Tensors to and from NumPy, and arithmetic on gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad.errors import UnsupportedError
from unigrad_tensorflow.graph import node_of, register
from unigrad_tensorflow.parts import dense, operation
from unigrad_tensorflow.private import identity, raw, read, stop_recording
from unigrad_tensorflow.writes import reading, same_reading

__all__ = [
    "add",
    "assign",
    "cast",
    "clip_factor",
    "clone",
    "concat",
    "dtype",
    "equal",
    "from_numpy",
    "is_floating",
    "is_tensor",
    "is_variable",
    "memory_of",
    "narrow",
    "part_of",
    "requires_gradient",
    "scale",
    "shape",
    "snapshot",
    "to_numpy",
    "value",
    "version",
    "zeros",
]


def is_variable(obj: object) -> bool:
    """Whether ``obj`` is a variable, of Keras or of TensorFlow."""
    return isinstance(obj, keras.Variable | tf.Variable)


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a dense tensor or a variable."""
    return isinstance(obj, tf.Tensor | tf.Variable | keras.Variable)


def value(tensor: Any) -> Any:
    """Return the values as a tensor; reading a variable this way is no use of it."""
    return read(tensor) if is_variable(tensor) else tensor


def assign(tensor: Any, array: Any) -> None:
    """Write values into a variable; ``UnsupportedError`` for a tensor, which TensorFlow lets nobody write."""
    if not is_variable(tensor):
        raise UnsupportedError("TensorFlow's tensors can't be written, only its variables can")
    raw(tensor).assign(array if tf.is_tensor(array) else from_numpy(array))


class _Version:
    """Where the values of a variable lie.

    The tensor is held, so that the memory is not used again: a later write goes elsewhere.
    """

    __slots__ = ("place", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.place = _place(tensor)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Version):
            return NotImplemented
        # After a sparse write TensorFlow copies at each reading, so that another place says nothing.
        return self.place == other.place or equal(self.tensor, other.tensor)

    __hash__ = None  # type: ignore[assignment]


def memory_of(tensor: Any) -> Any:
    """Return an array over the tensor's own memory, in bytes."""
    try:
        array: Any = np.asarray(tensor)
    except ValueError:  # of a bfloat16 without dimensions
        array = np.asarray(tensor.numpy())
    return array.reshape(-1).view(np.uint8)


def _place(tensor: Any) -> int:
    return int(memory_of(tensor).__array_interface__["data"][0])


def version(tensor: Any) -> Hashable:
    """Return something that differs once a variable has other values; None for what is being traced."""
    if not tf.executing_eagerly():
        return None
    if not is_variable(tensor):
        return id(tensor)
    return _Version(read(tensor))  # type: ignore[return-value]  # compared, never hashed


def to_numpy(tensor: Any) -> Any:
    """Return a C-contiguous copy of the values; of a copy of a variable in a trace, which has none, itself for :func:`assign`."""
    found = value(tensor)
    if isinstance(found, tf.IndexedSlices):
        found = tf.convert_to_tensor(found)
    if tf.is_symbolic_tensor(found):
        if hasattr(found, "_unigrad_copy"):
            return found
        raise UnsupportedError(
            "a tensor of a tf.function that is being traced has no values yet; return it from the function"
        )
    return np.array(found.numpy(), order="C")


def from_numpy(array: Any) -> Any:
    """Return a tensor with a copy of the values."""
    array = np.asarray(array)
    if array.dtype.byteorder not in ("=", "|"):
        array = array.astype(array.dtype.newbyteorder("="))
    return tf.constant(array)


def shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape, with -1 for what a traced function knows only when it runs."""
    found = tensor.shape
    if isinstance(found, tf.TensorShape):
        return (-1,) if found.rank is None else tuple(-1 if size is None else size for size in found.as_list())
    return tuple(found)


def dtype(tensor: Any) -> str:
    """Return the name of the dtype."""
    return str(tf.as_dtype(tensor.dtype).name)


def is_floating(tensor: Any) -> bool:
    """Whether the elements are real floating-point numbers."""
    return bool(tf.as_dtype(tensor.dtype).is_floating)


def requires_gradient(tensor: Any) -> bool:
    """Whether the tensor is a trainable variable or has a recorded graph."""
    return register(tensor).trainable() if is_variable(tensor) else node_of(tensor) is not None


def clone(tensor: Any) -> Any:
    """Return the values without a graph; nobody can write a tensor, so the memory may be the same."""
    with stop_recording():
        made = identity(value(tensor))
    if is_variable(tensor):
        made._unigrad_copy = True
    return made


def snapshot(tensor: Any) -> Any:
    """Return the values as another object; nobody can write a tensor, so the memory is the same."""
    return clone(tensor)


def zeros(tensor: Any) -> Any:
    """Return zeros of the same shape and dtype."""
    return tf.zeros(tensor.shape, tensor.dtype)


def add(left: Any, right: Any) -> Any:
    """Return the sum."""
    return tf.add(tf.convert_to_tensor(left), tf.convert_to_tensor(right))


def scale(tensor: Any, factor: Any) -> Any:
    """Return the tensor times a number, in the tensor's dtype."""
    return tf.multiply(tensor, tf.cast(factor, tensor.dtype))


def cast(tensor: Any, dtype: str) -> Any:
    """Return the tensor in another dtype."""
    wanted = tf.as_dtype(dtype)
    return tensor if tensor.dtype == wanted else tf.cast(tensor, wanted)


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    """Return ``min(1, maximum / norm)``, the norm taken in float64."""
    if not tensors:
        return 1.0
    squares = [tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64))) for tensor in tensors]
    norm = tf.sqrt(tf.add_n(squares))
    # A norm that is no number is neither small nor zero.
    return tf.where((norm <= maximum), tf.ones_like(norm), tf.divide(tf.cast(maximum, tf.float64), norm))


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    """Return a part along ``axis``; it knows what it is a part of, since TensorFlow copies it unless its rows are aligned."""
    part = tensor[(slice(None),) * axis + (slice(start, stop),)]
    part._unigrad_part = tensor, axis, start, stop
    return part


def part_of(tensor: Any) -> tuple[Any, int, int, int] | None:
    """Return of which tensor :func:`narrow` made this one, and with which arguments."""
    found: tuple[Any, int, int, int] | None = getattr(tensor, "_unigrad_part", None)
    return found


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Join tensors along ``axis``."""
    given = list(tensors)
    if not tf.executing_eagerly() or not given[0].dtype.is_floating:
        return tf.concat(given, axis)
    with stop_recording():
        joined = tf.concat(given, axis)
    sizes = [tensor.shape[axis] for tensor in given]
    del tensors
    # Recorded by TensorFlow itself, the tape would keep the parts, of which only the sizes are needed.
    return operation([joined], lambda gradients: tf.split(dense(gradients[0]), sizes, axis), given)[0]


def equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits.

    What is being traced has no bits yet: there it is whether both are readings of one variable that nothing has written in between.
    """
    a, b = value(left), value(right)
    if tf.is_symbolic_tensor(a) or tf.is_symbolic_tensor(b):
        if reading(a) is None or reading(b) is None:
            raise UnsupportedError(
                "tensors of a tf.function that is being traced have no values yet, so that they can't be compared; run it eagerly, or "
                "without verify=True"
            )
        return same_reading(a, b)
    return bool(a.shape == b.shape and a.dtype == b.dtype and np.array_equal(memory_of(a), memory_of(b)))

"""Tensors to and from NumPy, and arithmetic on them. See ``unigrad.protocols.ArraysModule``."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from unigrad_numpy import ops
from unigrad_numpy.tensor import Tensor, wrap


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a tensor or parameter."""
    return isinstance(obj, Tensor)


def assign(tensor: Any, array: Any) -> None:
    """Write values in place, counted by the version."""
    array = np.asarray(array)
    tensor.assign(array.astype(array.dtype.newbyteorder("="), copy=False))


def version(tensor: Any) -> Hashable:
    """Return how often the tensor was written."""
    return int(tensor.version)


def to_numpy(tensor: Any) -> Any:
    """Return a C-contiguous copy of the values."""
    return tensor.numpy()


def from_numpy(array: Any) -> Any:
    """Return a tensor with a copy of the values."""
    return Tensor(np.asarray(array))


def shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape."""
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    """Return the name of the dtype."""
    return str(tensor.dtype.name)


def is_floating(tensor: Any) -> bool:
    """Whether the elements are real floating-point numbers."""
    return bool(tensor.dtype.kind == "f")


def requires_gradient(tensor: Any) -> bool:
    """Whether the tensor is a trainable leaf or has a graph."""
    return bool(tensor.requires_grad)


def clone(tensor: Any) -> Any:
    """Return a copy without a graph."""
    return wrap(tensor.numpy())


def snapshot(tensor: Any) -> Any:
    """Return a copy."""
    return clone(tensor)


def zeros(tensor: Any) -> Any:
    """Return zeros of the same shape and dtype."""
    return wrap(np.zeros(tensor.shape, tensor.dtype))


def add(left: Any, right: Any) -> Any:
    """Return the sum."""
    with np.errstate(all="ignore"):  # a gradient that is inf or nan is an answer
        return ops.add(left, right)


def scale(tensor: Any, factor: Any) -> Any:
    """Return the tensor times a number, in the tensor's dtype."""
    if isinstance(factor, Tensor):
        factor = ops.cast(factor, tensor.dtype)
    with np.errstate(all="ignore"):  # a gradient that is inf or nan is an answer
        return ops.mul(tensor, factor)


def cast(tensor: Any, dtype: str) -> Any:
    """Return the tensor in another dtype."""
    return ops.cast(tensor, dtype)


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    """Return ``min(1, maximum / norm)``, the norm taken in float64; nan for a norm that is no number."""
    norm = math.sqrt(sum(float(np.square(tensor._array, dtype=np.float64).sum()) for tensor in tensors))
    return 1.0 if norm == 0 or norm <= maximum else maximum / norm


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    """Return a part along ``axis`` as a view."""
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Join tensors along ``axis``."""
    return ops.concat(tensors, axis)


def equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    a, b = left._array, right._array
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())

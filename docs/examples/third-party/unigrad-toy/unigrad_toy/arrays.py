"""Tensors to and from NumPy, and arithmetic on them. See ``unigrad.protocols.ArraysModule``."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from toygrad import Buffer, Tensor, functions


def is_tensor(obj: object) -> bool:
    return isinstance(obj, Tensor)


def assign(tensor: Any, array: Any) -> None:
    tensor.write(array)


def version(tensor: Any) -> Hashable:
    return int(tensor.memory.writes)


def to_numpy(tensor: Any) -> Any:
    return np.array(tensor.data, order="C")


def from_numpy(array: Any) -> Any:
    return Tensor(array)


def shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.data.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.data.dtype)


def is_floating(tensor: Any) -> bool:
    return bool(tensor.data.dtype.kind == "f")


def requires_gradient(tensor: Any) -> bool:
    return bool(tensor.tracked)


def clone(tensor: Any) -> Any:
    return Buffer(tensor.data) if isinstance(tensor, Buffer) else Tensor(tensor.data)


def snapshot(tensor: Any) -> Any:
    return clone(tensor)


def zeros(tensor: Any) -> Any:
    return Tensor(np.zeros_like(tensor.data))


def add(left: Any, right: Any) -> Any:
    with np.errstate(all="ignore"):  # a gradient that is inf or nan is an answer
        return left + right


def scale(tensor: Any, factor: Any) -> Any:
    with np.errstate(all="ignore"):
        return tensor * (functions.cast(factor, dtype(tensor)) if isinstance(factor, Tensor) else factor)


def cast(tensor: Any, dtype: str) -> Any:
    return functions.cast(tensor, dtype)


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    norm = float(np.sqrt(sum(float(np.square(t.data, dtype=np.float64).sum()) for t in tensors)))
    return float(np.minimum(1.0, maximum / norm)) if norm else 1.0  # min() of Python would turn nan into 1


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def concat(tensors: Sequence[Any], axis: int) -> Any:
    return functions.join(tensors, axis)


def equal(left: Any, right: Any) -> bool:
    same = left.data.shape == right.data.shape and left.data.dtype == right.data.dtype
    return bool(same and left.data.tobytes() == right.data.tobytes())

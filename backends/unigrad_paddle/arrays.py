"""Tensors to and from NumPy, and arithmetic on them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import paddle

from unigrad.dtypes import ml_dtype
from unigrad.errors import ArgumentTypeError
from unigrad_paddle.framework import Tensor, bump_version

_FLOATING = frozenset({paddle.float32, paddle.float64, paddle.float16, paddle.bfloat16})
_HALF = frozenset({paddle.float16, paddle.bfloat16})
_NAMES: dict[Any, str] = {}


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a tensor or parameter."""
    return isinstance(obj, Tensor)


def shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape."""
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    """Return the name of the dtype."""
    kind = tensor.dtype
    name = _NAMES.get(kind)
    if name is None:
        name = _NAMES[kind] = str(kind).rpartition(".")[2]
    return name


def is_floating(tensor: Any) -> bool:
    """Whether the dtype is a real floating-point type."""
    return tensor.dtype in _FLOATING


def is_half(tensor: Any) -> bool:
    """Whether the dtype is one of half precision, for which Paddle has no kernels of most layers on a CPU."""
    return tensor.dtype in _HALF


def half(tensor: Any) -> str:
    """Say that such a tensor gets no gradient."""
    return (
        f"backend 'paddle' does not support gradients of {dtype(tensor)}: on a CPU Paddle has no kernel of it for matmul, conv2d, "
        "layer_norm, mean and others; use float32 or float64"
    )


def requires_gradient(tensor: Any) -> bool:
    """Whether the tensor is a trainable leaf or has a recorded graph."""
    return not tensor.stop_gradient


def clone(tensor: Any) -> Any:
    """Return a contiguous copy without a graph."""
    return tensor.detach().clone()


def snapshot(tensor: Any) -> Any:
    """Return a copy; tensors can be written in place, so none is shared."""
    return tensor.detach().clone()


def zeros(tensor: Any) -> Any:
    """Return zeros of the same shape and dtype."""
    return paddle.zeros(tensor.shape, tensor.dtype)


def add(left: Any, right: Any) -> Any:
    """Return the sum as a new tensor."""
    return left + right


def scale(tensor: Any, factor: Any) -> Any:
    """Return the tensor times a scalar as a new tensor of the same dtype."""
    return cast(tensor * factor, dtype(tensor))


def cast(tensor: Any, dtype: str) -> Any:
    """Return the tensor in another dtype, itself if it has it."""
    return tensor if tensor.dtype == getattr(paddle, dtype) else tensor.astype(dtype)


def clip_factor(tensors: Sequence[Any], maximum: float) -> float:
    """Return ``min(1, maximum / norm)`` over all tensors; 1.0 for none or norm 0, NaN if the norm is NaN."""
    norms = [float(paddle.linalg.norm(tensor.detach().astype("float64").flatten())) for tensor in tensors]
    norm = math.nan if any(map(math.isnan, norms)) else math.hypot(*norms)
    if norm == 0:
        return 1.0
    return norm if math.isnan(norm) else min(1.0, maximum / norm)


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    """Return the part ``start:stop`` along ``axis`` as a view."""
    return paddle.slice(tensor, [axis], [start], [stop])


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Join tensors along ``axis``."""
    return paddle.concat(list(tensors), axis)


def equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return bool(left.numpy().tobytes() == right.numpy().tobytes())


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values as a C-contiguous NumPy copy."""
    array = np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape))
    return array.view(ml_dtype("bfloat16")) if tensor.dtype == paddle.bfloat16 else array


def from_numpy(array: Any) -> Any:
    """Return a tensor with a copy of the values."""
    array = np.array(array, order="C", copy=True)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    name = array.dtype.name
    if name == "bfloat16":
        array = array.view(np.uint16)  # which Paddle reads as bfloat16
    elif array.dtype == np.uint16:
        raise ArgumentTypeError("paddle has no tensor of the NumPy dtype uint16; it would read it as bfloat16")
    # to_tensor leaves a list behind at each call
    try:
        made = paddle.empty(list(array.shape), name)
        made.get_tensor().set(array, paddle.framework._current_expected_place_())
    except (TypeError, ValueError, RuntimeError) as cause:
        raise ArgumentTypeError(f"paddle has no tensor of the NumPy dtype {name}") from cause
    return made


def assign(tensor: Any, array: Any) -> None:
    """Write the values of a NumPy array into the tensor, and count up its version, which Paddle's ``set_value`` does not."""
    values = from_numpy(array)
    with paddle.no_grad():
        tensor.set_value(values)
    bump_version(tensor)


def version(tensor: Any) -> Hashable:
    """Return the identity and the version counter."""
    return id(tensor), tensor.inplace_version

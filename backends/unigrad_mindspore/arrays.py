"""Tensors to and from NumPy, and arithmetic on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops

from unigrad.dtypes import ml_dtype
from unigrad.errors import ArgumentTypeError
from unigrad_mindspore.pynative import unrecorded
from unigrad_mindspore.versions import version as version
from unigrad_mindspore.versions import written

_WIDE = {"bfloat16"}
_WHOLE = frozenset(
    getattr(mindspore, name)
    for name in ("bool_", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a tensor or parameter."""
    return isinstance(obj, Tensor)


def shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape."""
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    """Return the name of the dtype."""
    return str(tensor.dtype).lower()


def is_floating(tensor: Any) -> bool:
    """Whether the dtype is a real floating-point type."""
    return dtype(tensor) in ("float16", "float32", "float64", "bfloat16")


def requires_gradient(tensor: Any) -> bool:
    """Whether the tensor is a trainable leaf or has a recorded graph; MindSpore gives one to a comparison too."""
    return bool(tensor._requires_grad) and is_floating(tensor)


def is_whole(tensor: Any) -> bool:
    """Whether the dtype is one of whole numbers or bool: MindSpore makes such parameters trainable too, by default."""
    return tensor.dtype in _WHOLE


def never_trainable(tensor: Any) -> bool:
    """Whether the tensor was made without taking gradients: a parameter that was frozen later still has its node."""
    return (not tensor._requires_grad and tensor._grad_node is None) or is_whole(tensor)


def view(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values as an array that may share memory; it is to be read only."""
    if dtype(tensor) in _WIDE:
        return np.asarray(tensor.astype(mindspore.float32).asnumpy().astype(ml_dtype("bfloat16")))
    return np.asarray(tensor.asnumpy())


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values as a C-contiguous NumPy copy."""
    return np.array(view(tensor), order="C", copy=True)


def from_numpy(array: Any) -> Any:
    """Return a tensor with a copy of the values."""
    array = np.array(array, order="C", copy=True)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return Tensor(array)
    except TypeError as cause:
        raise ArgumentTypeError(f"mindspore has no tensor of the NumPy dtype {array.dtype.name}") from cause


def clone(tensor: Any) -> Any:
    """Return a copy without a graph; a buffer that is a parameter stays one, as layers want it."""
    made = from_numpy(view(tensor))
    if isinstance(tensor, Parameter) and never_trainable(tensor):
        return Parameter(made, name=tensor.name, requires_grad=False)
    return made


def snapshot(tensor: Any) -> Any:
    """Return a copy of a tensor that only the core holds."""
    return from_numpy(view(tensor))


def zeros(tensor: Any) -> Any:
    """Return zeros of the same shape and dtype."""
    return Tensor(np.zeros(tensor.shape), dtype=tensor.dtype)


def add(left: Any, right: Any) -> Any:
    """Return the sum as a new tensor."""
    return left + right


def scale(tensor: Any, factor: Any) -> Any:
    """Return the tensor times a scalar as a new tensor of the same dtype."""
    if not isinstance(factor, Tensor):
        factor = Tensor(np.array(factor), dtype=tensor.dtype)  # MindSpore would round a Python number to float32
    return cast(tensor * factor, dtype(tensor))


def cast(tensor: Any, dtype: str) -> Any:
    """Return the tensor in another dtype, itself if it has it."""
    wanted = getattr(mindspore, dtype if dtype != "bool" else "bool_")
    return tensor if tensor.dtype == wanted else tensor.astype(wanted)


def clip_factor(tensors: Sequence[Any], maximum: float) -> float:
    """Return ``min(1, maximum / norm)``, the norm taken in float64."""
    norm = math.sqrt(sum(float(np.square(view(tensor), dtype=np.float64).sum()) for tensor in tensors))
    return 1.0 if norm == 0 or norm <= maximum else maximum / norm


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    """Return the part ``start:stop`` along ``axis``."""
    return ops.narrow(tensor, axis, start, stop - start)


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Join tensors along ``axis``."""
    return ops.concat(tuple(tensors), axis)


def equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    a, b = view(left), view(right)
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def assign(tensor: Any, array: Any) -> None:
    """Write the values of a NumPy array into the tensor, counted by its version."""
    values = from_numpy(array)
    if values.shape != tensor.shape:
        raise ArgumentTypeError(f"values of shape {tuple(values.shape)} do not fit a tensor of shape {shape(tensor)}")
    overwrite(tensor, values)
    written(tensor)


def overwrite(tensor: Any, values: Any) -> None:
    """Write into the memory that the tensor has.

    ``Parameter.set_data`` would give it another, while an optimizer that was compiled before goes on in the first, in silence.
    """
    if tensor.has_init:
        tensor.init_data()  # made under no_init_parameters, it has no memory yet
    with unrecorded():
        tensor.copy_(values)

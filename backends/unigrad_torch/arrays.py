"""Tensors to and from NumPy, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unigrad.dtypes import ml_dtype
from unigrad.errors import ArgumentTypeError, UnsupportedError
from unigrad_torch import sharing
from unigrad_torch.sharded import forget_twin, is_sharded, spread, whole

unseen = torch._C.DisableTorchFunction
"""Context in which no mode, so neither the watcher of an open collector, is told of what runs."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NUMPY_BITS = {1: np.int8, 2: np.int16}


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a tensor or parameter."""
    return isinstance(obj, Tensor)


def shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape."""
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    """Return the name of the dtype."""
    return str(tensor.dtype)[6:]


def is_floating(tensor: Any) -> bool:
    """Whether the dtype is a real floating-point type."""
    return bool(tensor.is_floating_point())


def requires_gradient(tensor: Any) -> bool:
    """Whether the tensor is a trainable leaf or has a recorded graph."""
    return bool(tensor.requires_grad)


def _dense(tensor: Tensor) -> Tensor:
    if tensor.requires_grad:
        tensor = tensor.detach()
    tensor = whole(tensor)
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def clone(tensor: Any) -> Any:
    """Return a contiguous copy without a graph; sparse and nested tensors stay such."""
    if tensor.requires_grad or (type(tensor) is Tensor and torch._C._len_torch_function_stack()):
        with unseen():
            return _copied(tensor.detach())
    # Nobody would be told, so the context, which costs as much as a small copy, can be left out.
    return _copied(tensor)


def _copied(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return tensor.clone()
    return tensor.clone(memory_format=torch.contiguous_format)


def snapshot(tensor: Any) -> Any:
    """Return what ``clone`` returns; it may share memory until one of the two is written."""
    shared = sharing.shared(tensor)
    return clone(tensor) if shared is None else shared


def zeros(tensor: Any) -> Any:
    """Return zeros of the same shape, dtype and device."""
    with unseen():
        if is_sharded(tensor):
            return torch.zeros_like(tensor, requires_grad=False)
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def add(left: Any, right: Any) -> Any:
    """Return the sum as a new tensor; sparse operands are made dense."""
    left, right = (t if t.layout is torch.strided else t.to_dense() for t in (left, right))
    return left + right


def scale(tensor: Any, factor: Any) -> Any:
    """Return the tensor times a scalar as a new tensor of the same dtype."""
    return (tensor * factor).to(tensor.dtype)


def cast(tensor: Any, dtype: str) -> Any:
    """Return the tensor in another dtype, itself if it has it."""
    return tensor.to(getattr(torch, dtype))


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    """Return ``min(1, maximum / norm)``, the norm taken in float64, as a tensor that needs no synchronization; 1.0 for none."""
    if not tensors:
        return 1.0
    norms = []
    for tensor in map(_dense, tensors):
        # squares of float32 leave its range; the devices of Apple know no wider one
        least = torch.float32 if tensor.device.type == "mps" else torch.float64
        wide = torch.promote_types(tensor.dtype, least)
        norms.append(torch.linalg.vector_norm(tensor, dtype=wide).to(tensors[0].device))
    wide = torch.float64 if any(norm.dtype is torch.float64 for norm in norms) else torch.float32
    norm = torch.linalg.vector_norm(torch.stack([norm.to(wide) for norm in norms]))
    return torch.clamp(maximum / norm, max=1.0)


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    """Return the part ``start:stop`` along ``axis`` as a view."""
    return tensor.narrow(axis, start, stop - start)


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Join tensors along ``axis``."""
    return torch.cat(tuple(tensors), axis)


def bits(tensor: Tensor) -> Tensor:
    """Return the tensor as integers of the same width, sharing memory; complex numbers as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.view(_BITS[tensor.element_size()])


def equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    with unseen():
        left, right = _dense(left), _dense(right)
        return torch.equal(bits(left), bits(right.to(left.device)))


def to_numpy(tensor: Any) -> np.ndarray[Any, Any]:
    """Return the values as a C-contiguous NumPy copy."""
    with unseen():
        tensor = _dense(tensor).resolve_conj().resolve_neg().cpu().contiguous()
        if tensor.dtype is torch.bfloat16 or dtype(tensor).startswith("float8"):
            width = tensor.element_size()
            return tensor.view(_BITS[width]).numpy().view(ml_dtype(dtype(tensor))).copy()
        return tensor.numpy().copy()


def from_numpy(array: Any) -> Any:
    """Return a tensor with a copy of the values."""
    array = np.array(array, order="C", copy=True)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    name = array.dtype.name
    if name == "bfloat16" or name.startswith("float8"):
        return torch.from_numpy(array.view(_NUMPY_BITS[array.dtype.itemsize])).view(getattr(torch, name))
    try:
        return torch.from_numpy(array)
    except TypeError as cause:
        raise ArgumentTypeError(f"torch has no tensor of the NumPy dtype {name}") from cause


def assign(tensor: Any, array: Any) -> None:
    """Write the values of a NumPy array into the tensor; its version counter moves."""
    values = from_numpy(array)
    if is_sharded(tensor):
        forget_twin(tensor)
        values = spread(values, tensor)
    if tensor.layout is torch.sparse_coo:
        values = values.to_sparse_coo()
    elif tensor.layout is not torch.strided:
        raise UnsupportedError(f"torch writes no values into a tensor of layout {tensor.layout} in place")
    with torch.no_grad(), unseen():
        tensor.copy_(values)


def version(tensor: Any) -> Hashable:
    """Return the identity and the version counter; None in inference mode, which counts no versions."""
    return None if tensor.is_inference() else (id(tensor), tensor._version)

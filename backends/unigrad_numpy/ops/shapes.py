"""Operations that move elements without changing them, and the change of dtype."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from unigrad_numpy.graph import state
from unigrad_numpy.ops.base import as_tensor, operands, plain_axes, record, unbroadcast, view_counter
from unigrad_numpy.tensor import DIFFERENTIABLE, Tensor, wrap

__all__ = [
    "broadcast_to",
    "cast",
    "concat",
    "flatten",
    "identity",
    "pad",
    "reshape",
    "split",
    "stack",
    "stop_gradient",
    "swapaxes",
    "transpose",
]


def identity(x: Any) -> Tensor:
    """Return a new tensor of the same memory, connected to ``x``."""
    x = as_tensor(x)
    return record("identity", x._array, (x,), lambda context, saved, g, needs: (g,), counter=x._counter)


def stop_gradient(x: Any) -> Tensor:
    """Return a new tensor of the same memory, not connected to ``x``."""
    x = as_tensor(x)
    for observer in state.observers if state.recording else ():
        observer((x,))
    return wrap(x._array, x._counter)


def reshape(x: Any, shape: int | Sequence[int]) -> Tensor:
    """Return the elements in another shape; one length may be -1."""
    x = as_tensor(x)
    try:
        array = x._array.reshape(shape)
    except ValueError as error:
        raise ValueError(f"a tensor of shape {x.shape} cannot be reshaped to {shape}") from error
    return record("reshape", array, (x,), _reshape_vjp, context=x.shape, counter=view_counter(array, x))


def _reshape_vjp(shape: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (np.reshape(g, shape),)


def flatten(x: Any, start_axis: int = 1) -> Tensor:
    """Join all axes from ``start_axis`` on."""
    x = as_tensor(x)
    return reshape(x, (*x.shape[:start_axis], int(np.prod(x.shape[start_axis:]))))


def transpose(x: Any, axes: Sequence[int] | None = None) -> Tensor:
    """Reorder axes; without ``axes`` into reverse order."""
    x = as_tensor(x)
    order = tuple(reversed(range(x.ndim))) if axes is None else plain_axes(axes, x.ndim)
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(f"axes {axes} are not a reordering of the axes of shape {x.shape}")
    back = tuple(int(i) for i in np.argsort(order))
    return record("transpose", x._array.transpose(order), (x,), _transpose_vjp, context=back, counter=x._counter)


def _transpose_vjp(back: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (np.transpose(g, back),)


def swapaxes(x: Any, first: int, second: int) -> Tensor:
    """Exchange two axes."""
    x = as_tensor(x)
    order = list(range(x.ndim))
    first, second = plain_axes((first, second), x.ndim)
    order[first], order[second] = second, first
    return transpose(x, order)


def broadcast_to(x: Any, shape: Sequence[int]) -> Tensor:
    """Repeat along axes of length one, and along new leading axes, without copying."""
    x = as_tensor(x)
    try:
        array = np.broadcast_to(x._array, shape)
    except ValueError as error:
        raise ValueError(f"a tensor of shape {x.shape} cannot be broadcast to {tuple(shape)}") from error
    return record("broadcast_to", array, (x,), _broadcast_vjp, context=x.shape, counter=x._counter)


def _broadcast_vjp(shape: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (unbroadcast(g, shape),)


def concat(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Join tensors along an axis they have."""
    parts = _alike(tensors, "concat")
    try:
        array = np.concatenate([part._array for part in parts], axis)
    except ValueError as error:
        raise ValueError(f"concat along axis {axis} of shapes {[part.shape for part in parts]} does not fit") from error
    ends = np.cumsum([part.shape[axis] for part in parts]).tolist()
    return record("concat", array, parts, _concat_vjp, context=(axis % array.ndim, ends))


def _concat_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    axis, ends = context
    before = (builtins.slice(None),) * axis
    return tuple(
        g[(*before, builtins.slice(start, end))] if needed else None
        for start, end, needed in zip([0, *ends[:-1]], ends, needs, strict=True)
    )


def stack(tensors: Sequence[Any], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis."""
    parts = _alike(tensors, "stack")
    if len({part.shape for part in parts}) != 1:
        raise ValueError(f"stack needs tensors of one shape, not {[part.shape for part in parts]}")
    array = np.stack([part._array for part in parts], axis)
    return record("stack", array, parts, _stack_vjp, context=axis)


def _stack_vjp(axis: Any, saved: Any, g: Any, needs: Any) -> Any:
    return tuple(np.moveaxis(g, axis, 0))


def _alike(tensors: Sequence[Any], name: str) -> tuple[Tensor, ...]:
    parts = tuple(as_tensor(tensor) for tensor in tensors)
    if not parts:
        raise ValueError(f"{name} of no tensors")
    for part in parts[1:]:
        if part.dtype != parts[0].dtype:
            operands(parts[0], part, name)
            raise TypeError(f"{name} of a {parts[0].dtype} and a {part.dtype} tensor; cast() one of them")
    return parts


def split(x: Any, parts: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut into parts along ``axis``, as views.

    Parameters
    ----------
    x
        Tensor.
    parts
        Number of equal parts, or the length of each.
    axis
        Axis to cut.
    """
    x = as_tensor(x)
    (axis,) = plain_axes(axis, x.ndim)
    length = x.shape[axis]
    if isinstance(parts, int):
        if parts < 1 or length % parts:
            raise ValueError(f"axis {axis} of shape {x.shape} cannot be cut into {parts} equal parts")
        parts = [length // parts] * parts
    if np.sum(parts) != length:
        raise ValueError(f"parts of lengths {list(parts)} do not make up axis {axis} of shape {x.shape}")
    ends = np.cumsum(parts).tolist()
    before = (builtins.slice(None),) * axis
    return [x[(*before, builtins.slice(end - part, end))] for part, end in zip(parts, ends, strict=True)]


def pad(x: Any, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor:
    """Add a constant border.

    Parameters
    ----------
    x
        Tensor.
    widths
        ``(before, after)`` for each axis, in elements.
    value
        What the border holds.
    """
    x = as_tensor(x)
    if len(widths) != x.ndim:
        raise ValueError(f"pad needs {x.ndim} pairs of widths for shape {x.shape}, not {len(widths)}")
    array = np.pad(x._array, widths, constant_values=x.dtype.type(value))
    inner = tuple(builtins.slice(before, before + n) for (before, _), n in zip(widths, x.shape, strict=True))
    return record("pad", array, (x,), lambda inner, saved, g, needs: (g[inner],), context=inner)


def cast(x: Any, dtype: Any) -> Tensor:
    """Return the tensor in another dtype, itself if it has it; connected between float32 and float64."""
    x = as_tensor(x)
    target = np.dtype(dtype)
    if target == x.dtype:
        return x
    array = x._array.astype(target)
    if target not in DIFFERENTIABLE:
        for observer in state.observers if state.recording else ():
            observer((x,))
        return wrap(array)
    return record("cast", array, (x,), lambda source, saved, g, needs: (np.asarray(g).astype(source),), context=x.dtype)

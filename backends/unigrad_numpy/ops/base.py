"""What every operation uses: arguments to tensors of one dtype, and the record of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from unigrad_numpy.graph import VJP, Node, Saved, VersionCounter, base_of, keep, log_storage, state
from unigrad_numpy.tensor import DIFFERENTIABLE, Tensor, wrap

Array = np.ndarray[Any, Any]


class _Output:
    """Stands in ``saved`` for the result of the operation itself."""


OUTPUT: Final = _Output()


def as_tensor(value: Any) -> Tensor:
    """Return a tensor as it is and anything else as a new tensor of a copy."""
    return value if isinstance(value, Tensor) else Tensor(value)


def float_tensor(value: Any, name: str) -> Tensor:
    """Return ``value`` as a tensor of a differentiable dtype.

    Raises
    ------
    TypeError
        If it has another dtype.
    """
    tensor = value if isinstance(value, Tensor) else Tensor(value)
    if tensor._array.dtype not in DIFFERENTIABLE:
        raise TypeError(f"{name} needs float32 or float64, not {tensor.dtype}; use cast()")
    return tensor


def operands(x: Any, y: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return both operands as tensors of one dtype.

    A Python number takes the dtype of the other operand, so do integer and bool tensors beside a float one.

    Raises
    ------
    TypeError
        For two different float dtypes, or a float number with an integer tensor.
    """
    if not isinstance(x, Tensor):
        x = _number(x, y, name)
    elif not isinstance(y, Tensor):
        y = _number(y, x, name)
    left, right = x._array.dtype, y._array.dtype
    if left == right:
        return x, y
    if left.kind == "f" and right.kind == "f":
        raise TypeError(f"{name} of a {left} and a {right} tensor; cast() one of them")
    for dtype in (left, right):
        if dtype.kind not in "biuf":  # a cast would drop the imaginary part, or read a text as a number
            raise TypeError(f"{name} of a {dtype} tensor; there are float32, float64, integers and bool")
    if right.kind == "f":
        return wrap(x._array.astype(right)), y
    if left.kind == "f":
        return x, wrap(y._array.astype(left))
    common = np.result_type(left, right)
    return wrap(x._array.astype(common)), wrap(y._array.astype(common))


def _number(value: Any, beside: Any, name: str) -> Tensor:
    dtype = beside.dtype if isinstance(beside, Tensor) else None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool | int | float) and dtype is not None:
        if isinstance(value, float) and dtype.kind != "f":
            raise TypeError(f"{name} of a float and a {dtype} tensor; cast() the tensor first")
        return wrap(np.array(value, dtype=dtype))
    if isinstance(value, np.ndarray | list | tuple):
        return Tensor(value)
    raise TypeError(f"{name} of a tensor and a {type(value).__name__}")


def record(
    name: str,
    array: Any,
    inputs: tuple[Tensor, ...],
    vjp: VJP,
    saved: Sequence[Any] = (),
    context: Any = None,
    counter: VersionCounter | None = None,
) -> Tensor:
    """Make the result of an operation, with its node if one of the inputs needs a gradient.

    Parameters
    ----------
    name, vjp, context
        See :class:`unigrad_numpy.graph.Node`.
    array
        The result; not copied.
    inputs
        Tensors that a gradient can flow to, in the order of what ``vjp`` returns.
    saved
        What ``vjp`` needs: tensors, ``OUTPUT``, arrays that nobody else writes, or None.
    counter
        Version counter of the tensor whose memory the result shares.
    """
    out = wrap(array if type(array) is np.ndarray else np.asarray(array), counter)
    if not state.recording:
        return out
    for observer in state.observers:
        observer(inputs)
    for tensor in inputs:
        if tensor._requires_grad:
            break
    else:
        return out
    edges = tuple(
        [(tensor if tensor.node is None else tensor.node) if tensor._requires_grad else None for tensor in inputs]
    )
    out._requires_grad = True
    out.node = Node(name, vjp, edges, tuple([_saved(item, out) for item in saved]), context)
    return out


def _saved(item: Any, out: Tensor) -> Any:
    if item is None:
        return None
    if item is OUTPUT:
        item = out
    if isinstance(item, Tensor):
        saved = Saved(item._array, item._counter, item._counter.value)
    else:
        saved = Saved(item)
        if state.storages:
            log_storage(item)
    return keep(saved) if state.hooks else saved


def needed_by(other: Tensor, tensor: Tensor) -> Tensor | None:
    """Return ``tensor`` if it must be saved for the derivative with respect to ``other``, else None."""
    return tensor if other._requires_grad else None


def view_counter(result: Array, tensor: Tensor) -> VersionCounter | None:
    """Return the version counter that ``result`` shares with ``tensor``, None if it is a copy."""
    if result is tensor._array or base_of(result) is base_of(tensor._array):
        return tensor._counter
    return None


def unbroadcast(cotangent: Array, shape: tuple[int, ...]) -> Array:
    """Sum a cotangent over the axes along which an operand of ``shape`` was repeated."""
    if cotangent.shape == shape:
        return cotangent
    lead = cotangent.ndim - len(shape)
    axes = tuple(range(lead)) + tuple(
        lead + axis for axis, length in enumerate(shape) if length == 1 and cotangent.shape[lead + axis] != 1
    )
    return cotangent.sum(axis=axes, keepdims=True).reshape(shape)


def as_rows(array: Array) -> Array:
    """Return an array as a matrix of its last axis; NumPy can't find the number of rows of an array without elements."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def plain_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return an axis argument (None, int or several) as a tuple of non-negative axes."""
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int | np.integer) else tuple(axis)
    for one in axes:
        if not -ndim <= one < ndim:
            raise ValueError(f"axis {one} is out of range for {ndim} axes")
    return tuple(one % ndim for one in axes)


def expand(cotangent: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return the cotangent of a reduction with its reduced axes back, at length one."""
    return np.reshape(cotangent, tuple(1 if axis in axes else length for axis, length in enumerate(shape)))

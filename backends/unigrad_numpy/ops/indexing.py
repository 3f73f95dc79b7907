"""Selecting elements: indexing, lookup, where."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from unigrad_numpy.graph import Part
from unigrad_numpy.ops.base import as_tensor, operands, record, unbroadcast, view_counter
from unigrad_numpy.tensor import Tensor

__all__ = ["getitem", "plain_key", "take", "where"]


def plain_key(key: Any) -> tuple[Any, ...]:
    """Return an index as a tuple of None, Ellipsis, slices, int, bool and arrays.

    What NumPy itself would read as an array, as a list, a tuple or a range inside of a tuple, is one afterwards.
    """
    return tuple([_plain_part(part) for part in (key if isinstance(key, tuple) else (key,))])


def _plain_part(part: Any) -> Any:
    if part is None or part is Ellipsis or isinstance(part, bool | np.ndarray):
        return part
    if isinstance(part, Tensor):
        return part._array
    if isinstance(part, slice):  # a bound may be a tensor, which may change later
        return slice(*(None if bound is None else index(bound) for bound in (part.start, part.stop, part.step)))
    if not isinstance(part, np.bool_):  # which can be an integer, and selects as a bool
        try:
            return index(part)
        except TypeError:
            pass
    array = np.asarray(part)
    # NumPy makes an empty list an array of floats, and takes it as an index nevertheless.
    return array if array.size else array.astype(np.intp)


def getitem(x: Any, key: Any) -> Tensor:
    """Return ``x[key]``.

    Parameters
    ----------
    x
        Tensor.
    key
        Whatever NumPy takes: integers, slices, None, Ellipsis, integer and bool arrays, tensors or sequences. Without
        arrays the result is a view. An element selected several times sums its gradients.
    """
    x = as_tensor(x)
    parts = plain_key(key)
    array = x._array[parts]
    arrays = [part.copy() for part in parts if isinstance(part, np.ndarray)]
    if not arrays:
        view = np.asarray(array) if isinstance(array, np.ndarray) else x._array[(*parts, ...)]
        return record("getitem", view, (x,), _slice_vjp, context=(x.shape, parts), counter=view_counter(view, x))
    rest = tuple(None if isinstance(part, np.ndarray) else part for part in parts)
    places = tuple(isinstance(part, np.ndarray) for part in parts)
    return record("getitem", array, (x,), _gather_vjp, arrays, (x.shape, rest, places))


def _slice_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    shape, key = context
    return (Part(shape, key, g),)


def _gather_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    shape, rest, places = context
    arrays = iter(saved)
    key = tuple(next(arrays) if place else part for part, place in zip(rest, places, strict=True))
    out = np.zeros(shape, g.dtype)
    # Plain assignment would keep only the last of several gradients of one element.
    np.add.at(out, key, g)
    return (out,)


def take(table: Any, ids: Any, padding_index: int | None = None) -> Tensor:
    """Look up rows.

    Parameters
    ----------
    table
        Shape ``(rows, ...)``.
    ids
        Integer tensor or array of any shape, each ``0 <= id < rows``.
    padding_index
        A row that gets no gradient.

    Returns
    -------
    Tensor
        Shape ``(*ids.shape, ...)``.
    """
    table, ids = as_tensor(table), as_tensor(ids)
    rows = ids._array
    if rows.dtype.kind not in "iu":
        raise TypeError(f"take needs integer ids, not {rows.dtype}")
    if rows.size and (rows.min() < 0 or rows.max() >= table.shape[0]):
        raise IndexError(f"ids from {rows.min()} to {rows.max()} do not fit a table of {table.shape[0]} rows")
    return record("take", table._array[rows], (table,), _take_vjp, (ids,), (table.shape, padding_index))


def _take_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    shape, padding_index = context
    out = np.zeros(shape, g.dtype)
    np.add.at(out, saved[0], g)
    if padding_index is not None:
        out[padding_index] = 0
    return (out,)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    """Return elements of ``x`` where ``condition`` holds, else of ``y``.

    Both stay connected; the gradient is zero where one was not chosen.
    """
    condition = as_tensor(condition)
    x, y = operands(x, y, "where")
    chosen = condition._array.astype(bool, copy=False)
    array = np.where(chosen, x._array, y._array)
    kept = condition if chosen is condition._array else chosen
    return record("where", array, (x, y), _where_vjp, (kept,), (x.shape, y.shape))


def _where_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    zero = g.dtype.type(0)
    return (
        unbroadcast(np.where(saved[0], g, zero), shapes[0]) if needs[0] else None,
        unbroadcast(np.where(saved[0], zero, g), shapes[1]) if needs[1] else None,
    )

"""Sums, means, extrema, norms and softmax over axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy.graph import state
from unigrad_numpy.ops.base import OUTPUT, Array, as_tensor, expand, float_tensor, plain_axes, record
from unigrad_numpy.tensor import Tensor, wrap

__all__ = ["argmax", "log_softmax", "max", "mean", "min", "norm", "softmax", "sum"]


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Sum over ``axis``.

    Parameters
    ----------
    x
        Tensor.
    axis
        None for all axes, an int or several.
    keepdims
        Whether reduced axes stay, with length one.
    """
    x = as_tensor(x)
    axes = plain_axes(axis, x.ndim)
    return record("sum", x._array.sum(axis=axes, keepdims=keepdims), (x,), _sum_vjp, context=(x.shape, axes))


def _sum_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    shape, axes = context
    return (np.broadcast_to(expand(g, shape, axes), shape),)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Mean over ``axis``; arguments as of :func:`sum`."""
    x = float_tensor(x, "mean")
    axes = plain_axes(axis, x.ndim)
    count = x.dtype.type(np.prod([x.shape[axis] for axis in axes], dtype=int))
    with np.errstate(all="ignore"):
        array = x._array.sum(axis=axes, keepdims=keepdims) / count
    return record("mean", array, (x,), _mean_vjp, context=(x.shape, axes, count))


def _mean_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    shape, axes, count = context
    return (np.broadcast_to(expand(g / count, shape, axes), shape),)


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Largest element over ``axis``; at a tie the derivative is shared equally. Arguments as of :func:`sum`."""
    return _extremum("max", np.max, x, axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Smallest element over ``axis``; at a tie the derivative is shared equally. Arguments as of :func:`sum`."""
    return _extremum("min", np.min, x, axis, keepdims)


def _extremum(name: str, function: Any, x: Any, axis: Any, keepdims: bool) -> Tensor:
    x = float_tensor(x, name)
    axes = plain_axes(axis, x.ndim)
    if any(x.shape[axis] == 0 for axis in axes):
        raise ValueError(f"{name} over no elements: shape {x.shape}, axes {axes}")
    return record(name, function(x._array, axis=axes, keepdims=keepdims), (x,), _extremum_vjp, (x, OUTPUT), axes)


def _extremum_vjp(axes: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, extremum = saved
    hit = (x == expand(extremum, x.shape, axes)) | np.isnan(x)  # which is the extremum wherever there is one
    share = expand(g, x.shape, axes) / hit.sum(axis=axes, keepdims=True, dtype=x.dtype)
    return (np.where(hit, share, x.dtype.type(0)),)


def argmax(x: Any, axis: int | None = None) -> Tensor:
    """Index of the largest element, the first at a tie; not differentiable."""
    x = as_tensor(x)
    for observer in state.observers if state.recording else ():
        observer((x,))
    return wrap(np.asarray(np.argmax(x._array, axis=axis)))


def norm(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Euclidean norm over ``axis``; the derivative at zero is zero. Arguments as of :func:`sum`."""
    x = float_tensor(x, "norm")
    axes = plain_axes(axis, x.ndim)
    array = np.sqrt((x._array * x._array).sum(axis=axes, keepdims=keepdims))
    return record("norm", array, (x,), _norm_vjp, (x, OUTPUT), axes)


def _norm_vjp(axes: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, length = saved
    length = expand(length, x.shape, axes)
    direction = np.where(length == 0, x.dtype.type(0), x / length)
    return (expand(g, x.shape, axes) * direction,)


def softmax(x: Any, axis: int = -1) -> Tensor:
    """Exponentials of ``x`` divided by their sum along ``axis``."""
    x = float_tensor(x, "softmax")
    powers = np.exp(_shifted(x._array, axis))
    array = powers / powers.sum(axis=axis, keepdims=True)
    return record("softmax", array, (x,), _softmax_vjp, (OUTPUT,), axis)


def _softmax_vjp(axis: Any, saved: Any, g: Any, needs: Any) -> Any:
    (y,) = saved
    weighted = g * y
    return (weighted - y * weighted.sum(axis=axis, keepdims=True),)


def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """Logarithm of :func:`softmax`, also where that is too small to represent."""
    x = float_tensor(x, "log_softmax")
    return record("log_softmax", log_probabilities(x._array, axis), (x,), _log_softmax_vjp, (OUTPUT,), axis)


def log_probabilities(x: Array, axis: int) -> Array:
    """Return the value of :func:`log_softmax`."""
    shifted = _shifted(x, axis)
    with np.errstate(all="ignore"):
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)))


def _shifted(x: Array, axis: int) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(x - x.max(axis=axis, keepdims=True, initial=-np.inf))


def _log_softmax_vjp(axis: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (g - np.exp(saved[0]) * g.sum(axis=axis, keepdims=True),)

"""Functions with points where no derivative exists; each states the choice made there."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy.ops.base import OUTPUT, float_tensor, operands, record, unbroadcast
from unigrad_numpy.tensor import Tensor

__all__ = ["abs", "clip", "floor", "hardswish", "maximum", "minimum", "relu", "relu6", "round", "sign"]


def relu(x: Any) -> Tensor:
    """Return the larger of ``x`` and 0; the derivative at 0 is 0."""
    x = float_tensor(x, "relu")
    return record("relu", np.maximum(x._array, x.dtype.type(0)), (x,), _relu_vjp, (OUTPUT,))


def _relu_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (np.where(saved[0] <= 0, g.dtype.type(0), g),)


def relu6(x: Any) -> Tensor:
    """Return ``x`` limited to 0 ... 6; the derivative at both ends is 0."""
    x = float_tensor(x, "relu6")
    kind = x.dtype.type
    return record("relu6", np.clip(x._array, kind(0), kind(6)), (x,), _relu6_vjp, (OUTPUT,))


def _relu6_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    (y,) = saved
    return (np.where((y <= 0) | (y >= 6), g.dtype.type(0), g),)


def hardswish(x: Any) -> Tensor:
    """Return ``x * relu6(x + 3) / 6``; the derivative is 0 at -3 and 1 at 3."""
    x = float_tensor(x, "hardswish")
    kind = x.dtype.type
    array = x._array * np.clip(x._array + kind(3), kind(0), kind(6)) / kind(6)
    return record("hardswish", array, (x,), _hardswish_vjp, (x,))


def _hardswish_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    (x,) = saved
    kind = x.dtype.type
    slope = np.where(x <= -3, kind(0), np.where(x >= 3, kind(1), x / kind(3) + kind(0.5)))
    return (g * slope,)


def abs(x: Any) -> Tensor:
    """Return the absolute value of ``x``; the derivative at 0 is 0."""
    x = float_tensor(x, "abs")
    return record("abs", np.abs(x._array), (x,), lambda context, saved, g, needs: (g * np.sign(saved[0]),), (x,))


def clip(x: Any, low: float | None = None, high: float | None = None) -> Tensor:
    """Return ``x`` limited to ``low`` ... ``high``; the derivative at a bound is 1.

    Parameters
    ----------
    x
        Float tensor.
    low, high
        Bounds; None for no bound.
    """
    x = float_tensor(x, "clip")
    kind = x.dtype.type
    low = kind(-np.inf if low is None else low)
    high = kind(np.inf if high is None else high)
    return record("clip", np.clip(x._array, low, high), (x,), _clip_vjp, (x,), (low, high))


def _clip_vjp(bounds: Any, saved: Any, g: Any, needs: Any) -> Any:
    (x,) = saved
    return (np.where((x < bounds[0]) | (x > bounds[1]), g.dtype.type(0), g),)


def maximum(x: Any, y: Any) -> Tensor:
    """Return the larger of two elements; at a tie each has half of the derivative."""
    x, y = operands(x, y, "maximum")
    return record("maximum", np.maximum(x._array, y._array), (x, y), _larger_vjp, (x, y))


def minimum(x: Any, y: Any) -> Tensor:
    """Return the smaller of two elements; at a tie each has half of the derivative."""
    x, y = operands(x, y, "minimum")
    return record("minimum", np.minimum(x._array, y._array), (x, y), _smaller_vjp, (x, y))


def _larger_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, y = saved
    return _share(g, x > y, x, y, needs)


def _smaller_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, y = saved
    return _share(g, x < y, x, y, needs)


def _share(g: Any, first: Any, x: Any, y: Any, needs: Any) -> Any:
    kind = g.dtype.type
    no_number = np.isnan(x)  # is the result, whatever stands beside it
    tie = (x == y) | (no_number & np.isnan(y))
    share = np.where(tie, kind(0.5), (first | no_number).astype(g.dtype))
    return (
        unbroadcast(g * share, x.shape) if needs[0] else None,
        unbroadcast(g * (kind(1) - share), y.shape) if needs[1] else None,
    )


def _step(name: str, function: Any) -> Any:
    def operation(x: Any) -> Tensor:
        x = float_tensor(x, name)
        return record(name, function(x._array), (x,), lambda context, saved, g, needs: (np.zeros_like(g),))

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"Return ``{name}`` of ``x``; the derivative is 0 everywhere, and ``x`` stays connected."
    return operation


round = _step("round", np.round)
floor = _step("floor", np.floor)
sign = _step("sign", np.sign)

"""Arithmetic with broadcasting, matrix products and comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy.graph import state
from unigrad_numpy.ops.base import OUTPUT, as_rows, float_tensor, needed_by, operands, record, unbroadcast
from unigrad_numpy.tensor import Tensor, wrap

__all__ = [
    "add",
    "div",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "linear",
    "matmul",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "sub",
]


def add(x: Any, y: Any) -> Tensor:
    """Return ``x + y``."""
    x, y = operands(x, y, "add")
    return record("add", x._array + y._array, (x, y), _add_vjp, context=(x.shape, y.shape))


def _add_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (
        unbroadcast(g, shapes[0]) if needs[0] else None,
        unbroadcast(g, shapes[1]) if needs[1] else None,
    )


def sub(x: Any, y: Any) -> Tensor:
    """Return ``x - y``."""
    x, y = operands(x, y, "sub")
    return record("sub", x._array - y._array, (x, y), _sub_vjp, context=(x.shape, y.shape))


def _sub_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (
        unbroadcast(g, shapes[0]) if needs[0] else None,
        unbroadcast(-g, shapes[1]) if needs[1] else None,
    )


def mul(x: Any, y: Any) -> Tensor:
    """Return ``x * y``."""
    x, y = operands(x, y, "mul")
    saved = (needed_by(y, x), needed_by(x, y))
    return record("mul", x._array * y._array, (x, y), _mul_vjp, saved, (x.shape, y.shape))


def _mul_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, y = saved
    return (
        unbroadcast(g * y, shapes[0]) if needs[0] else None,
        unbroadcast(g * x, shapes[1]) if needs[1] else None,
    )


def div(x: Any, y: Any) -> Tensor:
    """Return ``x / y``; both are float tensors."""
    x, y = operands(x, y, "div")
    float_tensor(x, "div")
    with np.errstate(all="ignore"):
        array = x._array / y._array
    return record("div", array, (x, y), _div_vjp, (needed_by(y, x), y), (x.shape, y.shape))


def _div_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, y = saved
    return (
        unbroadcast(g / y, shapes[0]) if needs[0] else None,
        unbroadcast(-g * x / (y * y), shapes[1]) if needs[1] else None,
    )


def neg(x: Any) -> Tensor:
    """Return ``-x``."""
    return record("neg", -x._array, (x,), lambda context, saved, g, needs: (-g,))


def pow(x: Any, y: Any) -> Tensor:
    """Return ``x ** y``.

    The derivative of ``x ** 0`` with respect to ``x`` is zero everywhere; that of ``0 ** y`` with respect to ``y`` is
    zero for ``y >= 0``.
    """
    x, y = operands(x, y, "pow")
    with np.errstate(all="ignore"):
        array = np.power(x._array, y._array)
    return record("pow", array, (x, y), _pow_vjp, (x, y, needed_by(y, OUTPUT)), (x.shape, y.shape))  # type: ignore[arg-type]


def _pow_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, y, out = saved
    dx = dy = None
    if needs[0]:
        factor = np.where(y == 0, y.dtype.type(0), y * np.power(x, y - y.dtype.type(1)))
        dx = unbroadcast(g * factor, shapes[0])
    if needs[1]:
        factor = np.where((x == 0) & (y >= 0), x.dtype.type(0), out * np.log(x))
        dy = unbroadcast(g * factor, shapes[1])
    return dx, dy


def matmul(x: Any, y: Any) -> Tensor:
    """Return the matrix product ``x @ y``.

    Parameters
    ----------
    x
        Shape ``(..., n, k)`` or ``(k,)``.
    y
        Shape ``(..., k, m)`` or ``(k,)``; leading axes broadcast.
    """
    x, y = operands(x, y, "matmul")
    try:
        array = np.matmul(x._array, y._array)
    except ValueError as error:
        raise ValueError(f"matmul of shapes {x.shape} and {y.shape} does not fit") from error
    return record("matmul", array, (x, y), _matmul_vjp, (needed_by(y, x), needed_by(x, y)), (x.shape, y.shape))


def _matmul_vjp(shapes: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, y = saved
    x_shape, y_shape = shapes
    g = np.asarray(g)
    # A vector is a matrix of one row on the left, of one column on the right.
    if len(y_shape) == 1:
        g = g[..., None]
        y = y if y is None else y[:, None]
    if len(x_shape) == 1:
        g = g[..., None, :]
        x = x if x is None else x[None, :]
    dx = dy = None
    if needs[0]:
        dx = g @ y.swapaxes(-1, -2)
        dx = unbroadcast(dx, (1, *x_shape) if len(x_shape) == 1 else x_shape).reshape(x_shape)
    if needs[1]:
        if len(y_shape) <= 2 < x.ndim:
            # One product of all rows, rather than one for each leading index and their sum.
            x, g = as_rows(x), as_rows(g)
        dy = x.swapaxes(-1, -2) @ g
        dy = unbroadcast(dy, (*y_shape, 1) if len(y_shape) == 1 else y_shape).reshape(y_shape)
    return dx, dy


def linear(x: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` as one operation.

    Parameters
    ----------
    x
        Shape ``(..., inputs)``.
    weight
        Shape ``(outputs, inputs)``.
    bias
        Shape ``(outputs,)`` or None.
    """
    x, weight = operands(x, weight, "linear")
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear: an input of shape {x.shape} does not fit a weight of shape {weight.shape}")
    array = x._array @ weight._array.T
    saved = (needed_by(weight, x), needed_by(x, weight))
    if bias is None:
        return record("linear", array, (x, weight), _linear_vjp, saved)
    weight, bias = operands(weight, bias, "linear")
    if bias.shape != weight.shape[:1]:
        raise ValueError(f"linear: a bias of shape {bias.shape} does not fit a weight of shape {weight.shape}")
    array = np.add(array, bias._array, out=array) if array.ndim else array
    return record("linear", array, (x, weight, bias), _linear_vjp, saved)


def _linear_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, weight = saved
    rows = as_rows(g)
    return (
        g @ weight if needs[0] else None,
        rows.T @ as_rows(x) if needs[1] else None,
        *((rows.sum(axis=0) if needs[2] else None,) if len(needs) == 3 else ()),
    )


def _comparison(name: str, function: Any) -> Any:
    def compare(x: Any, y: Any) -> Tensor:
        x, y = operands(x, y, name)
        for observer in state.observers if state.recording else ():
            observer((x, y))
        return wrap(np.asarray(function(x._array, y._array)))

    compare.__name__ = compare.__qualname__ = name
    compare.__doc__ = f"Return the bool tensor of ``{name}`` elementwise; not differentiable."
    return compare


equal = _comparison("equal", np.equal)
not_equal = _comparison("not_equal", np.not_equal)
less = _comparison("less", np.less)
less_equal = _comparison("less_equal", np.less_equal)
greater = _comparison("greater", np.greater)
greater_equal = _comparison("greater_equal", np.greater_equal)

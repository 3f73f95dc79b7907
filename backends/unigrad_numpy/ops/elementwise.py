"""Smooth functions of one tensor, applied to each element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from unigrad_numpy.ops.base import OUTPUT, Array, float_tensor, record
from unigrad_numpy.tensor import Tensor

__all__ = ["cos", "erf", "exp", "gelu", "log", "sigmoid", "silu", "sin", "softplus", "sqrt", "tanh"]


def _unary(
    name: str, function: Callable[[Array], Any], derivative: Callable[[Array], Any], keeps: str, text: str
) -> Any:
    """Make the operation ``name``; ``derivative`` is a function of the kept ``"input"`` or ``"output"``."""

    def vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
        return (g * derivative(saved[0]),)

    def operation(x: Any) -> Tensor:
        x = float_tensor(x, name)
        with np.errstate(all="ignore"):
            array = function(x._array)
        return record(name, array, (x,), vjp, (x if keeps == "input" else OUTPUT,))

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = text
    return operation


def _sigmoid(x: Array) -> Array:
    # exp of a negative number never overflows.
    small = np.exp(-np.abs(x))
    one = x.dtype.type(1)
    return np.where(x >= 0, one, small) / (one + small)


def _erf(x: Array) -> Array:
    # NumPy has no erf; the one of the standard library is exact to the last bits.
    return np.array(list(map(math.erf, x.ravel().tolist())), dtype=x.dtype).reshape(x.shape)


def _normal_density(x: Array) -> Array:
    return np.exp(-x * x / x.dtype.type(2)) / x.dtype.type(math.sqrt(2 * math.pi))


def _normal_cdf(x: Array) -> Array:
    kind = x.dtype.type
    return (kind(1) + _erf(x / kind(math.sqrt(2)))) / kind(2)


def _silu_derivative(x: Array) -> Array:
    gate = _sigmoid(x)
    one = x.dtype.type(1)
    return gate * (one + x * (one - gate))


exp = _unary("exp", np.exp, lambda y: y, "output", "Return e to the power of ``x``.")
log = _unary("log", np.log, lambda x: x.dtype.type(1) / x, "input", "Return the natural logarithm of ``x``.")
sqrt = _unary(
    "sqrt",
    np.sqrt,
    lambda y: y.dtype.type(0.5) / y,
    "output",
    "Return the square root of ``x``; its derivative at 0 is infinite.",
)
tanh = _unary("tanh", np.tanh, lambda y: y.dtype.type(1) - y * y, "output", "Return the hyperbolic tangent of ``x``.")
sin = _unary("sin", np.sin, np.cos, "input", "Return the sine of ``x``.")
cos = _unary("cos", np.cos, lambda x: -np.sin(x), "input", "Return the cosine of ``x``.")
sigmoid = _unary(
    "sigmoid", _sigmoid, lambda y: y * (y.dtype.type(1) - y), "output", "Return the logistic function of ``x``."
)
erf = _unary(
    "erf",
    _erf,
    lambda x: np.exp(-x * x) * x.dtype.type(2 / math.sqrt(math.pi)),
    "input",
    "Return the error function of ``x``.",
)
gelu = _unary(
    "gelu",
    lambda x: x * _normal_cdf(x),
    lambda x: _normal_cdf(x) + x * _normal_density(x),
    "input",
    "Return ``x`` times the standard normal distribution function of ``x``.",
)
silu = _unary("silu", lambda x: x * _sigmoid(x), _silu_derivative, "input", "Return ``x`` times its logistic function.")
softplus = _unary(
    "softplus",
    lambda x: np.logaddexp(x, x.dtype.type(0)),
    _sigmoid,
    "input",
    "Return the logarithm of one plus e to the ``x``.",
)

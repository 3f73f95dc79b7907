"""Elementary functions are as accurate as the backend states: no less, and not much more (clause X1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad_conformance import accuracy
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.clause("X1")

# The reference is computed in as many digits as the machine has: more than float64 where there are.
Wide = np.ndarray[Any, Any]
_erf = np.vectorize(math.erf, otypes=[np.longdouble])


def _sigmoid(x: Wide) -> Wide:
    return np.asarray(1 / (1 + np.exp(-x)))


def _normal(x: Wide) -> Wide:
    """Return the distribution function of the normal distribution; gelu is x times it."""
    return np.asarray((1 + _erf(x / np.sqrt(np.longdouble(2)))) / 2)


def _density(x: Wide) -> Wide:
    return np.asarray(np.exp(-x * x / 2) / np.sqrt(2 * np.longdouble(np.pi)))


# Function -> its formula, that of its derivative, and the smallest argument; the largest is 10.
FORMULAS: Mapping[str, tuple[Callable[[Wide], Wide], Callable[[Wide], Wide], float]] = {
    "exp": (np.exp, np.exp, -10),
    "log": (np.log, lambda x: 1 / x, 1 / 32),
    "sqrt": (np.sqrt, lambda x: 1 / (2 * np.sqrt(x)), 1 / 32),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2, -10),
    "sin": (np.sin, np.cos, -10),
    "cos": (np.cos, lambda x: -np.sin(x), -10),
    "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x), -10),
    "gelu": (lambda x: x * _normal(x), lambda x: _normal(x) + x * _density(x), -10),
}


@pytest.mark.dtypes("float32", "float64")
@pytest.mark.parametrize("name", FORMULAS)
def test_a_function_is_as_accurate_as_stated(samples, name, dtype):
    value, derivative, least = FORMULAS[name]
    x = np.linspace(least, 10, 4001).astype(dtype)
    with unigrad.GradientCollector(unigrad.wrap({"w": samples.leaf(array(1))}), parameters=False) as collector:
        watched = collector.watch(samples.tensor(x), name="x")
        y = getattr(samples.operations, name)(watched)
        collector.backward(samples.operations.sum(y))
    exact = x.astype(np.longdouble)
    error = max(
        accuracy.measured(to_numpy(y), value(exact)),
        accuracy.measured(to_numpy(collector.input_gradients["x"]), derivative(exact)),
    )
    statement = accuracy.stated(samples).get(dtype, {}).get(name)
    assert not accuracy.verdict(name, dtype, error, statement)


def test_every_function_with_a_statement_is_measured():
    assert set(FORMULAS) == {name for names in accuracy.FUNCTIONS.values() for name in names}

"""Every differentiable operation of the samples: how it is called, its NumPy formula, inputs off its kinks, and its bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unigrad_conformance.suite.problems import array

__all__ = ["OPERATION_CASES", "OperationCase"]


@dataclass(frozen=True)
class OperationCase:
    """One use of one operation.

    Parameters
    ----------
    operation
        Name in ``unigrad.samples.Operations``, or the operator.
    call
        ``call(operations, **tensors)``.
    formula
        The same in NumPy.
    inputs
        Arguments by name, float64 or int64.
    terms
        Bound of value and gradient, in roundings relative to the largest value.
    reason
        Why that many.
    label
        Set where an operation has several cases.
    """

    operation: str
    call: Callable[..., Any]
    formula: Callable[..., Any]
    inputs: Mapping[str, np.ndarray[Any, Any]]
    terms: int
    reason: str
    label: str = ""

    @property
    def id(self) -> str:
        """Return the id of the case in the names of tests."""
        return f"{self.operation}-{self.label}" if self.label else self.operation


X = array(3, 4, seed=1, dtype="float64")
Y = array(3, 4, seed=2, dtype="float64")
POSITIVE = np.abs(X) + 0.5
# No element is within 0.04 of -3, 0, 3 or 6, where some derivative jumps.
OFF_KINKS = np.array([[-4.5, -3.1, -1.7, -0.4], [0.3, 1.9, 2.8, 3.3], [4.4, 5.7, 6.6, -2.2]])
IDS = np.array([0, 2, 2, 1, 2])

FUNCTION = "a function of one element, right to a few units in the last place, as is its derivative"


def _sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)


def _softmax(x: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def _cross_entropy(x: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(-np.log(_softmax(x, 1))[np.arange(len(labels)), labels].mean())


def _set(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = x * 2
    out[1] = 5
    return out


def _elementwise() -> list[OperationCase]:
    formulas: dict[str, tuple[Callable[..., Any], np.ndarray[Any, Any]]] = {
        "exp": (np.exp, X),
        "log": (np.log, POSITIVE),
        "sqrt": (np.sqrt, POSITIVE),
        "tanh": (np.tanh, X),
        "sin": (np.sin, X),
        "cos": (np.cos, X),
        "sigmoid": (_sigmoid, X),
        "relu": (lambda x: np.maximum(x, 0), OFF_KINKS),
        "relu6": (lambda x: np.clip(x, 0, 6), OFF_KINKS),
        "gelu": (_gelu, X),
        "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, OFF_KINKS),
        "absolute": (np.abs, OFF_KINKS),
    }
    return [
        OperationCase(name, lambda ops, x, name=name: getattr(ops, name)(x), formula, {"x": x}, 8, FUNCTION)
        for name, (formula, x) in formulas.items()
    ]


def _reductions() -> list[OperationCase]:
    reason = "a sum of at most 12 elements"
    cases = []
    for name, formula in {"sum": np.sum, "mean": np.mean, "max": np.max}.items():
        for axis in (None, 0, 1, -1):
            cases.append(
                OperationCase(
                    name,
                    lambda ops, x, name=name, axis=axis: getattr(ops, name)(x, axis),
                    lambda x, formula=formula, axis=axis: np.asarray(formula(x, axis=axis)),
                    {"x": X},
                    12,
                    reason,
                    f"axis {axis}",
                )
            )
    for axis in (0, -1):
        cases.append(
            OperationCase(
                "softmax",
                lambda ops, x, axis=axis: ops.softmax(x, axis),
                lambda x, axis=axis: _softmax(x, axis),
                {"x": X},
                16,
                "exponentials, and sums of at most 4 of them in value and derivative",
                f"axis {axis}",
            )
        )
    cases.append(
        # Large, since a framework adds 1e-12 to the norm by which the gradient divides.
        OperationCase("norm", lambda ops, x: ops.norm(x), lambda x: np.sqrt(np.sum(x * x)), {"x": 64 * X}, 16, reason)
    )
    cases.append(
        OperationCase(
            "cross_entropy",
            lambda ops, x, labels: ops.cross_entropy(x, labels),
            _cross_entropy,
            {"x": X, "labels": np.array([1, 0, 3])},
            24,
            "exponentials, sums of 4, a logarithm and a mean of 3",
        )
    )
    return cases


def _two_operands() -> list[OperationCase]:
    row, column = array(4, seed=3, dtype="float64"), array(3, 1, seed=4, dtype="float64")
    exact = "one rounding, and sums over at most 3 broadcast elements in the derivative"
    cases = []
    formulas: dict[str, Callable[[Any, Any], Any]] = {
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
        "/": lambda x, y: x / y,
    }
    for name, operator in formulas.items():
        for label, other in {"same shape": POSITIVE, "row": np.abs(row) + 0.5, "column": np.abs(column) + 0.5}.items():
            cases.append(
                OperationCase(
                    name, lambda ops, x, y, f=operator: f(x, y), operator, {"x": X, "y": other}, 8, exact, label
                )
            )
        cases.append(
            OperationCase(
                name,
                lambda ops, x, f=operator: f(x, 3.0),
                lambda x, f=operator: f(x, 3.0),
                {"x": X},
                8,
                exact,
                "number after",
            )
        )
        cases.append(
            OperationCase(
                name,
                lambda ops, x, f=operator: f(3.0, x),
                lambda x, f=operator: f(3.0, x),
                {"x": POSITIVE},
                8,
                exact,
                "number before",
            )
        )
    cases.append(OperationCase("negative", lambda ops, x: -x, lambda x: -x, {"x": X}, 1, "exact"))
    cases.append(
        OperationCase("maximum", lambda ops, x, y: ops.maximum(x, y), np.maximum, {"x": X, "y": Y}, 1, "exact")
    )
    cases.append(
        OperationCase(
            "minimum_value",
            lambda ops, x: ops.minimum_value(x, 0.5),
            lambda x: np.maximum(x, 0.5),
            {"x": OFF_KINKS},
            1,
            "exact",
        )
    )
    sums = "sums of at most 4 products"
    deep, wide = array(2, 3, 4, seed=5, dtype="float64"), array(2, 4, 2, seed=6, dtype="float64")
    for label, x, y in (("matrices", X, array(4, 2, seed=7, dtype="float64")), ("stacks", deep, wide)):
        cases.append(
            OperationCase("matmul", lambda ops, x, y: ops.matmul(x, y), np.matmul, {"x": x, "y": y}, 8, sums, label)
        )
        cases.append(OperationCase("@", lambda ops, x, y: x @ y, np.matmul, {"x": x, "y": y}, 8, sums, label))
    return cases


def _moves() -> list[OperationCase]:
    moves = "values only move; the derivative sums at most 3 of them"
    keys: dict[str, Any] = {
        "int": 1,
        "slice": slice(1, 3),
        "tuple": (slice(None), 2),
        "slices": (slice(0, 2), slice(1, 4)),
        "steps": (slice(None, None, 2), slice(None)),
        "array with repeats": np.array([2, 0, 2]),
    }
    cases = [
        OperationCase("index", lambda ops, x, k=key: ops.index(x, k), lambda x, k=key: x[k], {"x": X}, 3, moves, label)
        for label, key in keys.items()
    ]
    cases += [
        OperationCase("reshape", lambda ops, x: ops.reshape(x, (2, 6)), lambda x: x.reshape(2, 6), {"x": X}, 1, moves),
        OperationCase(
            "transpose",
            lambda ops, x: ops.transpose(x, (2, 0, 1)),
            lambda x: x.transpose(2, 0, 1),
            {"x": array(2, 3, 4, seed=8, dtype="float64")},
            1,
            moves,
        ),
        OperationCase(
            "take", lambda ops, x, ids: ops.take(x, ids), lambda x, ids: x[ids], {"x": X, "ids": IDS}, 3, moves
        ),
        OperationCase(
            "concat",
            lambda ops, x, y: ops.concat([x, y, x], 1),
            lambda x, y: np.concatenate([x, y, x], 1),
            {"x": X, "y": Y},
            3,
            moves,
        ),
        OperationCase(
            "split",
            lambda ops, x: (lambda a, b: a * 2.0 - b)(*ops.split(x, 2, 1)),
            lambda x: x[:, :2] * 2 - x[:, 2:],
            {"x": X},
            3,
            moves,
        ),
        OperationCase(
            "where",
            lambda ops, x, y: ops.where(x > 0.0, x * 2.0, y),
            lambda x, y: np.where(x > 0, x * 2, y),
            {"x": X, "y": Y},
            2,
            moves,
        ),
        OperationCase(
            "set_item",
            lambda ops, x: ops.set_item(x * 2.0, 1, 5.0),
            _set,
            {"x": array(5, seed=9, dtype="float64")},
            2,
            moves,
        ),
    ]
    return cases


OPERATION_CASES = [*_elementwise(), *_reductions(), *_two_operands(), *_moves()]
"""All cases."""

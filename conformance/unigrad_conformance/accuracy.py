"""What a backend states of the accuracy of its elementary functions, and which of them a test used.

A bound counts roundings, which holds for functions that are right to a few units in the last place. Some frameworks trade digits
for speed; their backend states the error, the suite measures it, and the bounds of what went through such a function are wider by it, no
others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unigrad.samples import Accuracy
from unigrad_conformance.observations import EPSILON

__all__ = ["FUNCTIONS", "LIMIT", "Noted", "faults", "measured", "stated", "verdict"]

_NAMES = ("exp", "log", "sqrt", "tanh", "sin", "cos", "sigmoid", "gelu")

FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in _NAMES},
    "softmax": ("exp",),
    "cross_entropy": ("exp", "log"),
    "attention": ("exp",),
    "lstm": ("sigmoid", "tanh"),
    "gru": ("sigmoid", "tanh"),
}
"""Operation or kind of layer of the samples -> elementary functions that its mathematics has."""

LIMIT = 16
"""Units in the last place up to which a function is as right as the bounds assume, with no statement."""

_LOOSE = 4
"""Times the measured error that a statement may be, since another machine runs another kernel."""


class Noted:
    """The samples of a backend, noting the elementary functions that a test takes from them.

    Parameters
    ----------
    samples
        Module or object that satisfies :class:`unigrad.samples.Samples`.
    """

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._samples, name)
        if name == "operations":
            return _Operations(value, self.used)
        return self._noting(value) if name == "layer" else value

    def _noting(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(layer)
        def noting(kind: str, **config: Any) -> Any:
            self.used.update(FUNCTIONS.get(kind, ()))
            return layer(kind, **config)

        return noting

    def least_accurate(self, dtype: str) -> tuple[str, Accuracy] | None:
        """Return the function with the largest stated error among those used since the beginning of the test."""
        known = {name: one for name, one in stated(self._samples).get(dtype, {}).items() if name in self.used}
        return max(known.items(), key=lambda item: item[1].error, default=None)


class _Operations:
    """The operations of the samples; what is taken is noted, and is the framework's own."""

    def __init__(self, operations: Any, used: set[str]) -> None:
        self._operations = operations
        self._used = used

    def __getattr__(self, name: str) -> Any:
        self._used.update(FUNCTIONS.get(name, ()))
        return getattr(self._operations, name)


def stated(samples: Any) -> Mapping[str, Mapping[str, Accuracy]]:
    """Return what the samples state, by dtype and function; empty for nothing."""
    found: Mapping[str, Mapping[str, Accuracy]] = getattr(samples, "accuracy", {})
    return found


def faults(samples: Any) -> list[str]:
    """Return what is wrong with a statement before anything is measured.

    An error above the root of eps leaves less than half of the digits, and hides faults of the size that the comparison is there to find.
    """
    found = []
    for dtype, functions in stated(samples).items():
        if dtype not in EPSILON:
            found.append(f"{dtype!r} is no dtype of {', '.join(EPSILON)}")
            continue
        for name, one in functions.items():
            where = f"{name} in {dtype}"
            if name not in _NAMES:
                found.append(f"{where}: no function of {', '.join(_NAMES)}")
            elif not one.reason:
                found.append(f"{where} has no reason")
            elif not LIMIT * EPSILON[dtype] < one.error <= EPSILON[dtype] ** 0.5:
                found.append(
                    f"{where}: an error of {one.error:.2g}; up to {LIMIT * EPSILON[dtype]:.2g} nothing is stated, "
                    f"and more than {EPSILON[dtype] ** 0.5:.2g} is another function"
                )
    return found


def measured(found: np.ndarray[Any, Any], true: np.ndarray[Any, Any]) -> float:
    """Return the largest error, relative to the true value, or to one where that is smaller."""
    gaps = np.abs(found.astype(true.dtype) - true) / np.maximum(np.abs(true), 1)
    return float(gaps.max())


def verdict(name: str, dtype: str, error: float, statement: Accuracy | None) -> str:
    """Return what is wrong with a measured error against its statement; empty for nothing."""
    unit = EPSILON[dtype]
    if statement is None:
        text = f"{name} in {dtype} is {error:.3g} off, which are {error / unit:.0f} eps"
        return "" if error <= LIMIT * unit else f"{text}: more than {LIMIT}, which its samples must state in 'accuracy'"
    if error > statement.error:
        return f"{name} in {dtype} is {error:.3g} off, more than the {statement.error:.3g} that its samples state"
    if statement.error > _LOOSE * error:
        return f"{name} in {dtype} is {error:.3g} off; its samples state {statement.error:.3g}, more than {_LOOSE} times as much"
    return ""

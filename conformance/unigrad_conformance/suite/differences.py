"""Central differences of NumPy formulas in float64: what a gradient must be, by no other means than the formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from unigrad_conformance.observations import EPSILON

__all__ = ["STEP_ERROR", "assert_near", "central_differences"]

STEP = 3e-6
# For values and third derivatives of about 1: STEP**2 / 6 from the formula, 2**-52 / STEP from rounding, both below 1e-10.
STEP_ERROR = 1e-8


def central_differences(
    function: Callable[..., Any], arrays: Mapping[str, np.ndarray[Any, Any]], weights: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradient of ``sum(weights * function(*arrays))`` for each floating array.

    Parameters
    ----------
    function
        Formula in NumPy; called with the arrays in order, in float64.
    arrays
        Its arguments; integer arrays are passed on and get no gradient.
    weights
        Of the shape of the result.
    """
    points = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in arrays.items()}
    gradients = {}
    for name, point in points.items():
        if point.dtype.kind != "f":
            continue
        gradient = np.zeros(point.shape)
        for index in np.ndindex(*point.shape):
            sides = []
            for step in (STEP, -STEP):
                moved = point.copy()
                moved[index] += step
                sides.append(np.sum(weights * function(*{**points, name: moved}.values())))
            gradient[index] = (sides[0] - sides[1]) / (2 * STEP)
        gradients[name] = gradient
    return gradients


def assert_near(
    found: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    terms: int,
    *,
    scale: float | None = None,
    floor: float = 0.0,
    what: str = "",
) -> None:
    """Assert that two arrays differ by at most ``4 * eps * terms * scale``, or by ``floor * scale`` if that is more.

    ``scale`` defaults to the largest expected value; eps is that of the dtype of ``found``.
    """
    assert found.shape == np.shape(expected), what
    if scale is None:
        scale = float(np.abs(expected).max(initial=0.0))
    bound = max(4 * terms * EPSILON[found.dtype.name], floor) * scale
    difference = float(np.abs(found.astype(np.float64) - expected).max(initial=0.0))
    assert difference <= bound, f"{what} differs by {difference}, more than {bound}: {found!r} against {expected!r}"

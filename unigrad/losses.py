"""What may be given to a backward: losses, cotangents and weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unigrad.errors import ArgumentError, ArgumentTypeError, BackendMismatchError, LossError
from unigrad.plugins import backend_of
from unigrad.protocols import Backend

SMALLEST, LARGEST = 1e-30, 1e30
"""Weights whose product with a gradient of usual size is a number of float32."""

__all__ = ["check_flag", "check_losses", "check_weight", "require_number", "require_tensor"]


def check_flag(value: Any, name: str) -> None:
    """Raise unless ``value`` is true or false; a text that says no would be true, and a tensor is what its values are."""
    if value is not None and not isinstance(value, bool | int | np.bool_):
        raise ArgumentTypeError(f"{name} is True or False, not {value!r}")


def check_losses(backend: Backend, loss: Any, cotangent: Any) -> tuple[list[Any], list[Any]]:
    """Return losses and cotangents as lists of one length, a cotangent None where the loss has one element.

    Raises
    ------
    ArgumentError
        For an empty list, or lists that do not match.
    ArgumentTypeError, BackendMismatchError
        For what is no tensor, or a tensor of another framework.
    LossError
        For a loss of several elements without a cotangent, or a cotangent of another shape or dtype.
    """
    if cotangent is None and backend.arrays.is_tensor(loss) and math.prod(backend.arrays.shape(loss)) == 1:
        return [loss], [None]
    several = isinstance(loss, list | tuple)
    losses = list(loss) if several else [loss]
    if not losses:
        raise ArgumentError("backward needs at least one loss; the list is empty")
    if several and cotangent is not None and (not isinstance(cotangent, list | tuple) or len(cotangent) != len(losses)):
        raise ArgumentError(
            "for a list of losses, cotangent is a list of the same length (None where the loss has one element)"
        )
    cotangents = (list(cotangent) if several else [cotangent]) if cotangent is not None else [None] * len(losses)
    arrays = backend.arrays
    for index, (value, vector) in enumerate(zip(losses, cotangents, strict=True)):
        which = f"loss {index} of the list" if several else "the loss"
        require_tensor(backend, value, f"{which} is to be a tensor")
        shape = arrays.shape(value)
        if vector is None:
            if math.prod(shape) != 1:
                raise LossError(
                    f"{which} has shape {shape}; reduce it to one element, or give cotangent= of that shape"
                )
            continue
        require_tensor(backend, vector, f"the cotangent of {which} is to be a tensor")
        if arrays.shape(vector) != shape:
            raise LossError(f"the cotangent of {which} has shape {arrays.shape(vector)}, the loss has {shape}")
        if arrays.dtype(vector) != arrays.dtype(value):
            raise LossError(f"the cotangent of {which} is {arrays.dtype(vector)}, the loss is {arrays.dtype(value)}")
    return losses, cotangents


def require_tensor(backend: Backend, obj: Any, what: str) -> None:
    """Raise unless ``obj`` is a tensor of the backend; ``what`` begins the message."""
    if backend.arrays.is_tensor(obj):
        return
    if isinstance(obj, bool | int | float | complex | np.generic):
        raise ArgumentTypeError(f"{what}, not the number {obj!r}, which has no graph (was it read out with item()?)")
    try:
        other = backend_of(obj)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{what}, not a {type(obj).__name__}") from None
    if other.spec.name == backend.spec.name:
        raise ArgumentTypeError(f"{what}, not a {type(obj).__name__}")
    raise BackendMismatchError(f"{what} of {backend.spec.name}; this {type(obj).__name__} belongs to {other.spec.name}")


def check_weight(weight: float | None, accumulate: str, weighted: bool | None) -> float | None:
    """Return the weight of a backward as a float, or None.

    Parameters
    ----------
    weight
        As given by the user.
    accumulate
        Mode of the collector.
    weighted
        Whether earlier backward calls had weights; None if there were none.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For a weight that means nothing here.
    """
    if weight is not None:
        require_number(weight, "weight is a number of items")
        if accumulate == "write":
            raise ArgumentError("a weight means something in accumulate='add' only; 'write' holds one backward")
        if not math.isfinite(weight) or weight < 0:
            raise ArgumentError(f"weight is a finite number of items, 0 or more, not {weight!r}")
        if weight != 0 and not SMALLEST <= weight <= LARGEST:
            raise ArgumentError(
                f"weight is a number of items between {SMALLEST:.0e} and {LARGEST:.0e}, or 0, not {weight!r}: its product with a gradient "
                "would leave the range of float32"
            )
    if accumulate == "add" and weighted is not None and weighted != (weight is not None):
        raise ArgumentError(
            "weighted and unweighted backward calls in one collector have no common meaning; give a weight to each or to none"
        )
    return None if weight is None else float(weight)


def require_number(value: Any, what: str) -> None:
    """Raise unless ``value`` is a real number that a float can hold; ``what`` begins the message."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ArgumentTypeError(f"{what}, not {value!r}")
    try:
        float(value)
    except OverflowError:
        raise ArgumentError(f"{what}; this one is larger than any float") from None

"""What a test observed: a value with the bound within which another backend must agree."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["EPSILON", "Observation", "observe"]

EPSILON: Mapping[str, float] = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}
"""Spacing of the numbers just above one, by name of the dtype."""


@dataclass(frozen=True)
class Observation:
    """One recorded value.

    Parameters
    ----------
    name
        Unique within its test.
    array
        The value as an array, or None for an exact value.
    exact
        The value as JSON data (a flag, number, text, or a tagged list or set), or None for an array.
    dtype
        Name of the dtype whose epsilon bounds the difference; bfloat16 values are stored as float32.
    terms, factor, scale
        The bound is ``(factor * eps(dtype) * terms + error) * scale``; scale is the largest finite absolute value unless given.
    reason
        Why ``terms`` and ``factor`` are what they are.
    choice
        Whether the derivative does not exist here, so that a difference is flagged and is no failure.
    error, widened
        Error that the backend states of an elementary function which the test used, and why the bound is wider by it; 0 and an empty text
        for none.
    """

    name: str
    array: npt.NDArray[Any] | None
    exact: Any
    dtype: str
    terms: int
    factor: float
    scale: float
    reason: str
    choice: bool = False
    error: float = 0.0
    widened: str = ""

    @property
    def bound(self) -> float:
        """Largest allowed absolute difference per element; 0 for exact values."""
        return (self.factor * EPSILON.get(self.dtype, 0.0) * self.terms + self.error) * self.scale

    def to_json(self) -> dict[str, Any]:
        """Return JSON data without the array."""
        return {
            "name": self.name,
            "kind": "exact" if self.array is None else "array",
            "exact": self.exact,
            "dtype": self.dtype,
            "terms": self.terms,
            "factor": self.factor,
            "scale": self.scale,
            "reason": self.reason,
            "choice": self.choice,
            "error": self.error,
            "widened": self.widened,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], array: npt.NDArray[Any] | None = None) -> Observation:
        """Return the observation of which ``to_json`` made ``data``."""
        fields = ("name", "exact", "dtype", "terms", "factor", "scale", "reason", "choice", "error", "widened")
        return cls(array=array, **{field: data[field] for field in fields})


def observe(
    name: str,
    value: Any,
    *,
    terms: int = 0,
    factor: float = 4.0,
    scale: float | None = None,
    dtype: str | None = None,
    reason: str = "",
    choice: bool = False,
) -> Observation:
    """Make an observation of a NumPy array or number, a text, a flag, or a list or set of these.

    Raises
    ------
    ValueError
        For a floating-point value without a reason, or an unknown dtype.
    TypeError
        For a value that cannot be compared.
    """
    if isinstance(value, np.bool_):
        value = bool(value)
    if value is None or isinstance(value, (bool, str, int, list, tuple, set, frozenset)):
        return Observation(name, None, _plain(value), "", 0, 0.0, 0.0, reason or "exact", choice)
    array = np.array(value)
    if array.dtype.name == "bfloat16":
        dtype, array = dtype or "bfloat16", array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"cannot record {name!r}: a {type(value).__name__} of dtype {array.dtype}")
    if array.dtype.kind != "f":
        return Observation(name, array, None, array.dtype.name, 0, 0.0, 0.0, reason or "exact", choice)
    if not reason:
        raise ValueError(f"recording {name!r} needs reason=...: why this number of terms bounds the difference")
    dtype = dtype or array.dtype.name
    if dtype not in EPSILON:
        raise ValueError(f"recording {name!r}: no epsilon known for dtype {dtype!r}; use one of {', '.join(EPSILON)}")
    if scale is None:
        finite = np.abs(array[np.isfinite(array)]).astype(np.float64)
        scale = float(finite.max()) if finite.size else 0.0
    return Observation(name, array, None, dtype, terms, float(factor), float(scale), reason, choice)


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((_plain(item) for item in value), key=repr)}
    if isinstance(value, (list, tuple)):
        return {"list": [_plain(item) for item in value]}
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    raise TypeError(f"cannot record a {type(value).__name__} inside a list or set")


def to_line(observation: Observation) -> dict[str, Any]:
    """Return JSON data with the array inside, for the file that is written while tests run."""
    data = observation.to_json()
    if observation.array is not None:
        array = np.array(observation.array, order="C")
        data["array"] = {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "bytes": base64.b64encode(array.tobytes()).decode("ascii"),
        }
    return data


def from_line(data: Mapping[str, Any]) -> Observation:
    """Return the observation of which ``to_line`` made ``data``."""
    observation = Observation.from_json(data)
    if "array" not in data:
        return observation
    stored = data["array"]
    flat = np.frombuffer(base64.b64decode(stored["bytes"]), dtype=np.dtype(stored["dtype"]))
    return replace(observation, array=flat.reshape(stored["shape"]).copy())

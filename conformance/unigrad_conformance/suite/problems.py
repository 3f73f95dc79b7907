"""Inputs, small models and helpers that several test files of the suite share."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

import unigrad

Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["array", "dense", "gradients_of", "mlp", "same_bits", "to_numpy"]


def array(*shape: int, seed: int = 0, dtype: str = "float32") -> Array:
    """Return standard normal values that are the same on every backend."""
    values: Array = np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)
    return values


def dense(samples: Any, inputs: int, outputs: int, *, seed: int = 0, bias: bool = True, dtype: str = "float32") -> Any:
    """Return a native dense layer with fixed values of about unit gain."""
    weight = array(outputs, inputs, seed=seed, dtype=dtype) / np.sqrt(inputs).astype(dtype)
    return samples.layer("dense", weight=weight, bias=array(outputs, seed=seed + 1000, dtype=dtype) if bias else None)


def mlp(samples: Any, *widths: int, seed: int = 0, dtype: str = "float32", rate: float | None = None) -> Any:
    """Return dense layers of the given widths with tanh between them, and dropout if ``rate`` is given."""
    layers = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        layers.append(dense(samples, inputs, outputs, seed=seed + index, dtype=dtype))
        if index < len(widths) - 2:
            layers.append(samples.layer("tanh"))
            if rate is not None:
                layers.append(samples.layer("dropout", rate=rate))
    return samples.layer("sequential", layers=layers)


def to_numpy(tensor: Any) -> Array:
    """Return a native tensor's values."""
    values: Array = unigrad.backend_of(tensor).arrays.to_numpy(tensor)
    return values


def gradients_of(collector: unigrad.GradientCollector) -> dict[str, Array]:
    """Return all collected parameter gradients as arrays."""
    return {name: to_numpy(value) for name, value in collector.gradients.items()}


def same_bits(left: Mapping[str, Array], right: Mapping[str, Array]) -> None:
    """Assert that two mappings hold the same names, dtypes, shapes and bits."""
    assert sorted(left) == sorted(right)
    for name, value in left.items():
        other = right[name]
        assert (value.dtype, value.shape) == (other.dtype, other.shape), name
        assert value.tobytes() == other.tobytes(), f"{name} differs: {value!r} against {other!r}"

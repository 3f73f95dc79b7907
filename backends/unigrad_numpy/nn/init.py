"""First values of parameters, drawn from the generator of the backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from unigrad_numpy.ops.random import generator
from unigrad_numpy.tensor import Parameter

__all__ = ["fan_in_uniform", "full", "normal", "uniform", "xavier_uniform"]


def uniform(shape: Sequence[int], bound: float, dtype: Any) -> Parameter:
    """Return numbers drawn evenly between ``-bound`` and ``bound``."""
    return Parameter(generator.uniform(-bound, bound, tuple(shape)).astype(dtype))


def fan_in_uniform(shape: Sequence[int], fan_in: int, dtype: Any) -> Parameter:
    """Return numbers drawn evenly between plus and minus ``1 / sqrt(fan_in)``."""
    return uniform(shape, 1 / math.sqrt(fan_in) if fan_in else 0.0, dtype)


def xavier_uniform(shape: Sequence[int], dtype: Any) -> Parameter:
    """Return numbers drawn evenly between plus and minus ``sqrt(6 / (rows + columns))``."""
    return uniform(shape, math.sqrt(6 / (shape[0] + shape[1])), dtype)


def normal(shape: Sequence[int], dtype: Any) -> Parameter:
    """Return standard normal numbers."""
    return Parameter(generator.standard_normal(tuple(shape)).astype(dtype))


def full(shape: Sequence[int], value: float, dtype: Any) -> Parameter:
    """Return one value everywhere."""
    return Parameter(np.full(tuple(shape), value, dtype))

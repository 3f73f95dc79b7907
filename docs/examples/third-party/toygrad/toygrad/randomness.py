"""The one random generator of the framework, and what is drawn from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toygrad.tensor import Tensor, record

generator = np.random.default_rng(0)


def seed(number: int) -> None:
    """Start the generator anew."""
    generator.bit_generator.state = np.random.default_rng(number).bit_generator.state


def normal(shape: Sequence[int]) -> Tensor:
    """Draw standard normal noise, float32."""
    return Tensor.of(generator.standard_normal(tuple(shape), np.float32))


def uniform(shape: Sequence[int]) -> Tensor:
    """Draw from [0, 1), float32."""
    return Tensor.of(generator.random(tuple(shape), np.float32))


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability ``rate``, and scale the others up."""
    one = x.data.dtype.type(1)
    keep = (uniform(x.shape).data >= rate) * (one / (one - one * rate) if rate < 1 else one)
    keep = keep.astype(x.data.dtype)
    return record(x.data * keep, (x,), lambda c: (c * keep,))

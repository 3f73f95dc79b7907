"""Random operations, all drawn from the one generator of this backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unigrad_numpy.ops.base import float_tensor, record
from unigrad_numpy.tensor import Tensor, wrap

__all__ = ["dropout", "generator", "get_state", "normal", "seed", "set_state", "uniform"]

generator = np.random.Generator(np.random.PCG64())
"""Every random operation and every initialisation of a layer draws from it."""


def seed(value: int) -> None:
    """Start the generator anew; the same seed gives the same numbers in every process."""
    generator.bit_generator.state = np.random.PCG64(value).state


def get_state() -> dict[str, Any]:
    """Return the state of the generator, a new dictionary."""
    return dict(generator.bit_generator.state)


def set_state(value: dict[str, Any]) -> None:
    """Put the generator into a state that :func:`get_state` returned."""
    generator.bit_generator.state = value


def normal(shape: Sequence[int] = (), dtype: Any = np.float32, source: np.random.Generator = generator) -> Tensor:
    """Draw standard normal numbers; ``source`` is another generator to draw from."""
    return wrap(np.asarray(source.standard_normal(tuple(shape), dtype=dtype)))


def uniform(shape: Sequence[int] = (), dtype: Any = np.float32, source: np.random.Generator = generator) -> Tensor:
    """Draw uniform numbers from 0 up to, not including, 1; ``source`` is another generator to draw from."""
    return wrap(np.asarray(source.random(tuple(shape), dtype=dtype)))


def dropout(x: Any, rate: float, training: bool = True) -> Tensor:
    """Set elements to zero with probability ``rate`` and divide the others by ``1 - rate``.

    Parameters
    ----------
    x
        Float tensor.
    rate
        Probability to drop an element, 0 to 1.
    training
        Where False, ``x`` is returned as it is and nothing is drawn.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"dropout needs a rate from 0 to 1, not {rate}")
    x = float_tensor(x, "dropout")
    if not training or rate == 0:
        return x
    kept = generator.random(x.shape, dtype=np.float32) >= rate
    scale = x.dtype.type(0 if rate == 1 else 1 / (1 - rate))
    return record("dropout", x._array * (kept * scale), (x,), _dropout_vjp, (np.asarray(kept),), scale)


def _dropout_vjp(scale: Any, saved: Any, g: Any, needs: Any) -> Any:
    return (g * (saved[0] * scale),)

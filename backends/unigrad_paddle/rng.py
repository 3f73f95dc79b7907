"""Seed, snapshot and restore Paddle's global random state, and the state of single generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from unigrad_paddle.framework import Generator, GeneratorState

_HEADER = 3
"""Device, seed and offset stand before the text of the engine."""


def seed(seed: int) -> None:
    """Seed Paddle."""
    paddle.seed(seed)


def snapshot() -> list[Any]:
    """Return the state of Paddle's generators."""
    return list(paddle.get_rng_state())


def restore(state: list[Any]) -> None:
    """Set the state of Paddle's generators."""
    paddle.set_rng_state(state)


def is_generator(obj: object) -> bool:
    """Whether ``obj`` is a generator of Paddle."""
    return isinstance(obj, Generator)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator."""
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator."""
    generator.set_state(state)


def to_portable(state: Any) -> np.ndarray[Any, Any]:
    """Return a snapshot, or the state of one generator, as bytes: for each the length, three numbers and the engine's text."""
    parts = []
    for one in state if isinstance(state, list) else [state]:
        *header, text = one.__getstate__()
        numbers = np.array([len(text), *header], "<i8")
        parts += [numbers.view(np.uint8), np.array(text, np.uint8)]
    return np.concatenate(parts)


def from_portable(array: Any) -> Any:
    """Return the snapshot of which ``to_portable`` made the bytes; ``ValueError`` if they are not one."""
    data = np.ascontiguousarray(np.asarray(array, np.uint8))
    states, start = [], 0
    while start < len(data):
        numbers = data[start : start + 8 * (1 + _HEADER)]
        if len(numbers) < 8 * (1 + _HEADER):
            raise ValueError("this random state of paddle is truncated or too long")
        length, *header = numbers.view("<i8").tolist()
        start += len(numbers)
        text = data[start : start + length]
        start += length
        if length < 0 or len(text) != length:
            raise ValueError("this random state of paddle is truncated or too long")
        made = GeneratorState.__new__(GeneratorState)
        try:
            made.__setstate__((*header, text.tolist()))
        except Exception as cause:
            raise ValueError("these bytes are not a random state of paddle") from cause
        states.append(made)
    if not states:
        raise ValueError("these bytes are not a random state of paddle")
    return states

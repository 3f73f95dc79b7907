"""The generator of the backend, and generators of a model's own. See ``unigrad.protocols.RngModule``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from unigrad_numpy.ops import random


def seed(seed: int) -> None:
    """Start the generator of the backend anew."""
    random.seed(seed)


def snapshot() -> dict[str, Any]:
    """Return the state of the generator of the backend."""
    return random.get_state()


def restore(state: dict[str, Any]) -> None:
    """Set the state of the generator of the backend."""
    random.set_state(state)


def is_generator(obj: object) -> bool:
    """Whether ``obj`` is a ``numpy.random.Generator``."""
    return isinstance(obj, np.random.Generator)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator, a new dictionary."""
    return generator.bit_generator.state


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator."""
    generator.bit_generator.state = state


def to_portable(state: Any) -> Any:
    """Return a state as the bytes of its JSON text; arrays in it become lists."""
    text = json.dumps(state, default=lambda value: value.tolist(), sort_keys=True)
    return np.frombuffer(text.encode(), np.uint8).copy()


def from_portable(array: Any) -> Any:
    """Return the state of which ``to_portable`` made the bytes; ``ValueError`` if they are not one."""
    state = json.loads(np.asarray(array, np.uint8).tobytes().decode())
    if not isinstance(state, dict) or "bit_generator" not in state:
        raise ValueError("these bytes are not the state of a NumPy generator")
    return state

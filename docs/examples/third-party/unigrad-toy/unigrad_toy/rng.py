"""The one random generator of toygrad. See ``unigrad.protocols.RngModule``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from toygrad import randomness

from unigrad.errors import UnsupportedError


def seed(seed: int) -> None:
    randomness.seed(seed)


def snapshot() -> Any:
    return randomness.generator.bit_generator.state


def restore(state: Any) -> None:
    randomness.generator.bit_generator.state = state


def is_generator(obj: object) -> bool:
    return False


def generator_state(generator: Any) -> Any:
    raise UnsupportedError("toygrad has one generator only")


def set_generator_state(generator: Any, state: Any) -> None:
    raise UnsupportedError("toygrad has one generator only")


def to_portable(state: Any) -> Any:
    return np.frombuffer(json.dumps(state).encode(), dtype=np.uint8).copy()


def from_portable(array: Any) -> Any:
    state = json.loads(bytes(array))
    if not isinstance(state, dict) or "bit_generator" not in state:
        raise ValueError("these bytes are not a state of toygrad's generator")
    return state

"""The one random generator of toygrad. See ``unigrad.protocols.RngModule``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import toygrad

from unigrad.errors import UnsupportedError


def seed(seed: int) -> None:
    toygrad.seed(seed)


def snapshot() -> Any:
    return toygrad.generator.bit_generator.state


def restore(state: Any) -> None:
    toygrad.generator.bit_generator.state = state


def is_generator(obj: object) -> bool:
    return False


def generator_state(generator: Any) -> Any:
    raise UnsupportedError("toygrad has one generator only")


def set_generator_state(generator: Any, state: Any) -> None:
    raise UnsupportedError("toygrad has one generator only")


def to_portable(state: Any) -> Any:
    return np.frombuffer(json.dumps(state).encode(), dtype=np.uint8).copy()


def from_portable(array: Any) -> Any:
    return json.loads(bytes(array))

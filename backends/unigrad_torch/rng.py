"""Seed, snapshot and restore torch's random state: the CPU's and that of every accelerator in use."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

_ACCELERATORS = ("cuda", "xpu", "mps")


def seed(seed: int) -> None:
    """Seed torch on all devices."""
    torch.manual_seed(seed)


def in_use() -> list[str]:
    """Return the names of the accelerators that this process has begun to use."""
    found = []
    for name in _ACCELERATORS:
        module = getattr(torch, name, None)
        if module is not None and module.is_available() and getattr(module, "is_initialized", lambda: True)():
            found.append(name)
    return found


def snapshot() -> dict[str, Any]:
    """Return the state of the CPU and of every device in use, by device name."""
    state = {"cpu": torch.get_rng_state()}
    for name in in_use():
        module = getattr(torch, name)
        if name == "mps":
            state[name] = module.get_rng_state()
        else:
            state |= {f"{name}:{index}": module.get_rng_state(index) for index in range(module.device_count())}
    return state


def restore(state: dict[str, Any]) -> None:
    """Set the state of every device in the snapshot."""
    for name, value in state.items():
        if name == "cpu":
            torch.set_rng_state(value)
        elif name == "mps":
            torch.mps.set_rng_state(value)
        else:
            kind, index = name.split(":")
            getattr(torch, kind).set_rng_state(value, int(index))


def is_generator(obj: object) -> bool:
    """Whether ``obj`` is a ``torch.Generator``."""
    return isinstance(obj, torch.Generator)


def generator_state(generator: Any) -> Any:
    """Return the state of a generator."""
    return generator.get_state()


def set_generator_state(generator: Any, state: Any) -> None:
    """Set the state of a generator."""
    generator.set_state(state)


def to_portable(state: Any) -> np.ndarray[Any, Any]:
    """Return a snapshot, or the state of one generator, as bytes: length of the header, names and sizes, states."""
    named = state if isinstance(state, dict) else {"": state}
    header = json.dumps([[name, value.numel()] for name, value in named.items()]).encode()
    parts = [value.cpu().numpy().astype(np.uint8) for value in named.values()]
    size = np.frombuffer(len(header).to_bytes(8, "little"), np.uint8)
    return np.concatenate([size, np.frombuffer(header, np.uint8), *parts])


def from_portable(array: Any) -> Any:
    """Return the snapshot of which ``to_portable`` made the bytes; ``ValueError`` if they are not one."""
    data = np.asarray(array, np.uint8).tobytes()
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        sizes = [(str(name), int(size)) for name, size in json.loads(data[8:start])]
    except (TypeError, ValueError) as cause:
        raise ValueError("these bytes are not a random state of torch") from cause
    if start + sum(size for _, size in sizes) != len(data):
        raise ValueError("this random state of torch is truncated or too long")
    named = {}
    for name, size in sizes:
        named[name] = torch.tensor(list(data[start : start + size]), dtype=torch.uint8)
        start += size
    return named[""] if list(named) == [""] else named

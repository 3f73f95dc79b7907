"""Random state: the stream of unigrad's, and the seeds that MindSpore's functional operations count in Python."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import mindspore
import numpy as np

from unigrad.errors import UnsupportedError
from unigrad_mindspore.draws import stream
from unigrad_mindspore.pynative import kernel_seeds, set_kernel_seeds

State = tuple[int, int, tuple[Any, dict[Any, int]]]


def seed(seed: int) -> None:
    """Start the stream anew, and seed MindSpore, whose initializers draw by its seed."""
    before = np.random.get_state()
    mindspore.set_seed(seed)
    np.random.set_state(before)  # MindSpore seeds NumPy too
    stream.seed, stream.drawn = seed, 0


def snapshot() -> State:
    """Return the state of both."""
    return stream.seed, stream.drawn, kernel_seeds()


def restore(state: State) -> None:
    """Set the state of both."""
    stream.seed, stream.drawn, kernels = state
    set_kernel_seeds(kernels)


def is_generator(obj: object) -> bool:
    """Return False: no operation on the CPU draws from a ``mindspore.Generator``."""
    return False


def generator_state(generator: Any) -> NoReturn:
    """Raise: there are no generators."""
    raise UnsupportedError("no operation of mindspore on the CPU draws from a generator")


def set_generator_state(generator: Any, state: Any) -> NoReturn:
    """Raise: there are no generators."""
    raise UnsupportedError("no operation of mindspore on the CPU draws from a generator")


def to_portable(state: Any) -> np.ndarray[Any, Any]:
    """Return a snapshot as the bytes of its JSON text."""
    seed, drawn, (chosen, kernels) = state
    text = json.dumps([seed, drawn, chosen, [[*key, value] for key, value in kernels.items()]])
    return np.frombuffer(text.encode(), np.uint8).copy()


def from_portable(array: Any) -> State:
    """Return the snapshot of which ``to_portable`` made the bytes; ``ValueError`` if they are not one."""
    try:
        seed, drawn, chosen, kernels = json.loads(np.asarray(array, np.uint8).tobytes().decode())
        return int(seed), int(drawn), (chosen, {(str(name), key): int(value) for name, key, value in kernels})
    except (TypeError, ValueError) as cause:
        raise ValueError("these bytes are not a random state of the mindspore backend") from cause

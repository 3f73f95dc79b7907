"""A small value that tells whether any bit of a tensor differs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

_WIDTH = 2048
_LEVELS = 6
_WEIGHTS = np.random.default_rng(0x5EED).integers(0, 2**63, (_LEVELS, _WIDTH), np.uint64) * 2 + 1


def fingerprint(tensor: Any) -> Hashable:
    """Return the sum, modulo ``2**64``, of the tensor's 32-bit words times fixed pseudo-random odd numbers.

    Changed words change it with a probability of about ``1 - 2**-32`` or better. The words are weighted per row of 2048, and the sums of
    the rows by other weights, and so on, so that moved values count. It costs a fraction of a cryptographic hash.
    """
    flat = np.ascontiguousarray(_values(tensor)).reshape(-1).view(np.uint8)
    whole = flat.size - flat.size % 4
    last = int.from_bytes(flat[whole:].tobytes(), "little")
    return _digest(flat[:whole].view(np.uint32), 0), last


def _values(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach()
    try:
        return np.from_dlpack(tensor)  # shares memory, which is read here only
    except (BufferError, RuntimeError, TypeError, ValueError):  # of a dtype that NumPy lacks
        array: np.ndarray[Any, Any] = tensor.numpy()
        return array


def _digest(words: np.ndarray[Any, Any], level: int) -> int:
    weights = _WEIGHTS[min(level, _LEVELS - 1)]
    rows = words.size // _WIDTH
    rest = words[rows * _WIDTH :]
    last = np.einsum("j,j->", rest, weights[: rest.size], dtype=np.uint64)
    if not rows:
        return int(last)
    # einsum widens the words piece by piece, so that no copy of them is made
    sums = np.einsum("ij,j->i", words[: rows * _WIDTH].reshape(rows, _WIDTH), weights, dtype=np.uint64)
    return _digest(np.append(sums, last).view(np.uint32), level + 1)

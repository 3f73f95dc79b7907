"""A small value that tells whether any bit of a tensor differs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from unigrad.fingerprint import digest


def fingerprint(tensor: Any) -> Hashable:
    """Return a digest of the bits of the tensor."""
    return digest(_values(tensor))


def _values(tensor: Any) -> np.ndarray[Any, Any]:
    tensor = tensor.detach()
    try:
        return np.from_dlpack(tensor)  # shares memory, which is read here only
    except (BufferError, RuntimeError, TypeError, ValueError):  # of a dtype that NumPy lacks
        array: np.ndarray[Any, Any] = tensor.numpy()
        return array

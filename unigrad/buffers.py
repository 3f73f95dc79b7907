"""Copies of buffers that are put in their places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from unigrad.protocols import Backend

__all__ = ["copies"]


def copies(backend: Backend, tensors: Iterable[Any]) -> list[Any]:
    """Return copies of buffers, of one that stands in several places the same copy for each.

    Parameters
    ----------
    backend
        Their backend.
    tensors
        The buffers, place by place.
    """
    made: dict[int, Any] = {}
    found = []
    for tensor in tensors:
        if id(tensor) not in made:
            made[id(tensor)] = backend.block.clone(tensor)
        found.append(made[id(tensor)])
    return found

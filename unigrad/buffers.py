"""Places of buffers, and copies to put into them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from unigrad.protocols import Backend, Entry

if TYPE_CHECKING:
    from unigrad.block import Block

__all__ = ["copies", "differs", "places"]


def places(blocks: Iterable[Block]) -> list[Entry]:
    """Return every place of a buffer, also empty ones that a forward may fill, but none of a layer that is still to be built."""
    found: list[Entry] = []
    for block in blocks:
        structure = block.structure()
        found += [
            entry for entry in structure.buffers if entry.tensor is not None or entry.layer not in structure.pending
        ]
    return found


def copies(backend: Backend, tensors: Iterable[Any]) -> list[Any]:
    """Return copies of buffers, of one that stands in several places the same copy for each.

    Parameters
    ----------
    backend
        Their backend.
    tensors
        The buffers, place by place; None where the place is empty.
    """
    made: dict[int, Any] = {}
    found = []
    for tensor in tensors:
        if id(tensor) not in made:
            copy = None if tensor is None else backend.arrays.clone(tensor)
            if copy is not None and backend.block.trainable(tensor):
                backend.block.set_trainable(copy, True)
            made[id(tensor)] = copy
        found.append(made[id(tensor)])
    return found


def differs(backend: Backend, left: Any, right: Any) -> bool:
    """Whether two contents of a place differ."""
    if left is None or right is None:
        return left is not right
    return not backend.arrays.equal(left, right)

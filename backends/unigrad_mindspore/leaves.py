"""Find the tensor of a leaf's node: MindSpore leads from a tensor to its node only."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from unigrad_mindspore.pynative import node_id

__all__ = ["known", "remember"]

_leaves: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Number of a leaf's node -> the leaf."""


def remember(leaf: Any) -> int | None:
    """Have the leaf found by its node for as long as it lives; return the number of the node."""
    number = node_id(leaf)
    if number is not None:
        _leaves[number] = leaf
    return number


def known(node: Any) -> Any | None:
    """Return the leaf of a node; None if nobody has told of it."""
    return _leaves.get(node._unique_id())

"""From the node that stands for a leaf in a graph back to the leaf tensor.

Paddle's nodes do not tell their tensor. A node keeps its Python object while somebody holds it, so that the object itself is the key;
a tensor has one node for life.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from unigrad_paddle.framework import node_of

_tensors: dict[Any, weakref.ref[Any]] = {}
_known: dict[int, Any] = {}
"""Node of each known tensor, by the id of the tensor."""


def know(tensors: Iterable[Any]) -> None:
    """Take note of trainable leaves; they are held weakly."""
    for tensor in tensors:
        if id(tensor) not in _known and not tensor.stop_gradient:
            node = node_of(tensor)
            # w[:] of a leaf is another tensor with the same node and the same .grad
            if leaf_of(node) is None:
                _known[id(tensor)] = node
                _tensors[node] = weakref.ref(tensor, _forgetter(id(tensor)))


def unknown(tensors: Iterable[Any]) -> list[Any]:
    """Return the tensors of which no note was taken."""
    return [tensor for tensor in tensors if id(tensor) not in _known]


def is_known(node: Any) -> bool:
    """Whether the node is that of a leaf of which a note was taken."""
    return node in _tensors


def _forgetter(key: int) -> Any:
    def forget(reference: Any) -> None:
        _tensors.pop(_known.pop(key, None), None)

    return forget


def leaf_of(node: Any) -> Any | None:
    """Return the living leaf of a node, None if it is not known."""
    reference = _tensors.get(node)
    return None if reference is None else reference()

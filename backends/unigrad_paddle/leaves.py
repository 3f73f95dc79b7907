"""From the node that stands for a leaf in a graph back to the leaf tensor.

Paddle's nodes do not tell their tensor. A node keeps its Python object while somebody holds it, so that the object itself is the key.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from unigrad_paddle.framework import node_of

_tensors: dict[Any, weakref.ref[Any]] = {}


def know(tensors: Iterable[Any]) -> None:
    """Take note of trainable leaves; they are held weakly."""
    for tensor in tensors:
        if not tensor.stop_gradient:
            node = node_of(tensor)
            if node not in _tensors:
                _tensors[node] = weakref.ref(tensor, lambda _, node=node: _tensors.pop(node, None))


def leaf_of(node: Any) -> Any | None:
    """Return the living leaf of a node, None if it is not known."""
    reference = _tensors.get(node)
    return None if reference is None else reference()

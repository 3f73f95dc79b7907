"""Marks of nodes of the graph, which live as long as the node.

A mark is a hook that the node holds, and that goes with it: so a node which gets the same address later is not taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["GATES", "RELEASED", "Marks"]


class _Mark:
    """Hook of a node that changes nothing and tells when the node dies."""

    __slots__ = ("_key", "_keys")

    def __init__(self, key: int, keys: set[int]) -> None:
        self._key = key
        self._keys = keys
        keys.add(key)

    def __call__(self, outputs: Any, inputs: Any) -> Any:
        return outputs

    def __del__(self) -> None:
        self._keys.discard(self._key)


class Marks:
    """Nodes that have something in common."""

    def __init__(self) -> None:
        self._keys: set[int] = set()

    def add(self, nodes: Iterable[Any]) -> None:
        """Mark nodes, none of them that of a leaf, which takes no hook."""
        for node in nodes:
            key = node.node_ptr()
            if key not in self._keys:
                node._register_post_hook(_Mark(key, self._keys))

    def first(self, nodes: Sequence[Any]) -> Any | None:
        """Return the first of the nodes that is marked, None if there is none."""
        keys = self._keys
        return next((node for node in nodes if node.node_ptr() in keys), None) if keys else None


RELEASED = Marks()
"""Nodes that a backward has released, or that can run only once and have run. Paddle notices a second backward only when it comes to
such a node, after it has released others."""

GATES = Marks()
"""Nodes behind which a checkpointed region lies."""

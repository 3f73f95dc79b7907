"""Marks of nodes of the graph, which live as long as the node.

A mark is a hook that the node holds. Paddle 3.3.1 may let go of it without holding Python's lock, so nothing may happen then: the
marks are held here too, and by the number of their references one sees whether the node still has its own. So a node which gets the
same address later is not taken for a marked one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import paddle

from unigrad_paddle.faults import running

__all__ = ["GATES", "RELEASED", "Marks", "forget_failed"]


class _Mark:
    """Hook of a node that changes nothing."""

    __slots__ = ()

    def __call__(self, outputs: Any, inputs: Any) -> Any:
        return outputs


_HELD_HERE = 2
"""References to a mark that no node has: that of the table, and that of the question."""
_FEW = 1000


class Marks:
    """Nodes that have something in common."""

    def __init__(self) -> None:
        self._marks: dict[int, _Mark] = {}
        self._limit = _FEW

    def add(self, nodes: Iterable[Any]) -> None:
        """Mark nodes, none of them that of a leaf, which takes no hook."""
        for node in nodes:
            key = node.node_ptr()
            if not self._has(key):
                mark = self._marks[key] = _Mark()
                node._register_post_hook(mark)
        if len(self._marks) > self._limit:
            self.sweep()

    def sweep(self) -> int:
        """Drop the marks of nodes that are gone; return how many are left."""
        self._marks = {key: self._marks[key] for key in filter(self._has, list(self._marks))}
        self._limit = 2 * len(self._marks) + _FEW
        return len(self._marks)

    def _has(self, key: int) -> bool:
        return key in self._marks and sys.getrefcount(self._marks[key]) > _HELD_HERE

    def first(self, nodes: Sequence[Any]) -> Any | None:
        """Return the first of the nodes that is marked, None if there is none."""
        marks = self._marks
        if not marks:
            return None
        found = next((node for node in nodes if node.node_ptr() in marks and self._has(node.node_ptr())), None)
        if found is None or running():
            return found
        forget_failed()  # which may hold copies of nodes that are gone
        return next((node for node in nodes if self._has(node.node_ptr())), None)


def forget_failed() -> None:
    """Have Paddle drop what a ``paddle.grad`` that failed has left: it keeps copies of the nodes until the next one."""
    leaf = paddle.ones([1])
    leaf.stop_gradient = False
    with paddle.enable_grad():
        paddle.grad(leaf * 1.0, leaf)


RELEASED = Marks()
"""Nodes that a backward has released, or that can run only once and have run. Paddle notices a second backward only when it comes to
such a node, after it has released others."""

GATES = Marks()
"""Nodes behind which a checkpointed region lies."""

"""Marks of nodes of the graph, which live as long as the node.

A mark is a hook that the node holds. Paddle 3.3.1 may let go of it without holding Python's lock, so nothing may happen then: the
marks are held here too, and by the number of their references one sees whether the node still has its own. So a node which gets the
same address later is not taken for a marked one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import paddle

from unigrad.errors import GraphReleasedError
from unigrad_paddle.engines import in_partial, is_running
from unigrad_paddle.faults import kept

__all__ = ["GATES", "RELEASED", "Marks", "forget_failed"]


class _Mark:
    """Hook of a node that changes nothing, with what is to be known of the node."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, outputs: Any, inputs: Any) -> Any:
        return outputs


class _Stop(_Mark):
    """Hook of a node that is not to be run again; an engine may still do so that was not called through a collector."""

    __slots__ = ()

    def __call__(self, outputs: Any, inputs: Any) -> Any:
        with kept(own=True):
            raise GraphReleasedError(
                "this graph was released by an earlier backward of a collector; pass retain_graph=True to that one, or run the forward "
                "again"
            )


_HELD_HERE = 2
"""References to a mark that no node has: that of the table, and that of the question."""
_FEW = 1000


class Marks:
    """Nodes that have something in common.

    Parameters
    ----------
    kind
        Class of the marks.
    """

    def __init__(self, kind: type[_Mark] = _Mark) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._marks: dict[int, _Mark] = {}
        self._limit = _FEW

    def add(self, nodes: Iterable[Any], value: Any = True) -> None:
        """Mark nodes, none of them that of a leaf, which takes no hook."""
        with self._lock:
            for node in nodes:
                key = node.node_ptr()
                if not self._has(key):
                    mark = self._marks[key] = self._kind(value)
                    node._register_post_hook(mark)
        if len(self._marks) > self._limit:
            self.sweep()

    def sweep(self) -> int:
        """Drop the marks of nodes that are gone; return how many are left."""
        with self._lock:
            self._marks = {key: self._marks[key] for key in filter(self._has, list(self._marks))}
            self._limit = 2 * len(self._marks) + _FEW
            return len(self._marks)

    def _has(self, key: int) -> bool:
        return key in self._marks and sys.getrefcount(self._marks[key]) > _HELD_HERE

    def value(self, node: Any) -> Any | None:
        """Return what a node was marked with, None if it is not marked."""
        key = node.node_ptr()
        return self._marks[key].value if self._has(key) else None

    def first(self, nodes: Sequence[Any]) -> Any | None:
        """Return the first of the nodes that is marked, None if there is none."""
        found = self._marked(nodes)
        if not found:
            return None
        if not is_running():
            forget_failed()  # which may hold copies of nodes that are gone
            found = self._marked(nodes)
        return found[0] if found else None

    def _marked(self, nodes: Sequence[Any]) -> list[Any]:
        find, count = self._marks.get, sys.getrefcount
        return [node for node in nodes if (mark := find(node.node_ptr())) is not None and count(mark) > _HELD_HERE + 1]


def forget_failed() -> None:
    """Have Paddle drop what a ``paddle.grad`` that failed has left: it keeps copies of the nodes until the next one."""
    if in_partial():
        return
    leaf = paddle.ones([1])
    leaf.stop_gradient = False
    with paddle.enable_grad():
        paddle.grad(leaf * 1.0, leaf)


RELEASED = Marks(_Stop)
"""Nodes that a backward has released, or that can run only once and have run. Paddle notices a second backward only when it comes to
such a node, after it has released others."""

GATES = Marks()
"""Nodes behind which a checkpointed region lies."""

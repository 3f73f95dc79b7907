"""Release nodes: each is marked, and cut from those below, so that what they saved is freed.

A mark is a hook on its node, so that it lives as long as the node and no longer. MindSpore does not tell that a graph was
released before a second backward has run a part of it, and it gives the numbers of dead nodes to new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

from unigrad_mindspore.pynative import PLAIN_NODE

__all__ = ["marked", "release"]


class _Mark:
    """Hook that does nothing."""

    __slots__ = ("__weakref__",)

    def __call__(self, *values: Any) -> None:
        return None


_marks: WeakValueDictionary[int, _Mark] = WeakValueDictionary()


def release(nodes: Sequence[tuple[int, Any, int]]) -> None:
    """Mark nodes as released and cut them from what is below; given are number, node and how many places it has for others.

    All are marked before any is cut: the node of a function of the user's own lives in the edges that lead to it alone, and
    touching it afterwards ends the process.
    """
    for number, node, _ in nodes:
        if number not in _marks:
            hook = _Mark()
            node.register_hook(hook)
            _marks[number] = hook
    for _, node, places in nodes:
        if isinstance(node, PLAIN_NODE):
            with suppress(IndexError):  # the node of a compiled function loses places in a backward
                for index in range(places):
                    node._set_next_edge(index, None)


def marked(nodes: Iterable[tuple[int, Any, int]]) -> Any | None:
    """Return a released one of some nodes; None if all are alive."""
    if not _marks:
        return None
    return next((node for number, node, _ in nodes if number in _marks), None)

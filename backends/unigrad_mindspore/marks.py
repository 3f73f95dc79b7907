"""Marks of released nodes. A mark is a hook on its node, so that it lives as long as the node and no longer.

MindSpore does not tell that a graph was released before a second backward has run a part of it, and it gives the numbers
of dead nodes to new ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["mark", "marked"]


class _Mark:
    """Hook that does nothing."""

    __slots__ = ("__weakref__",)

    def __call__(self, *values: Any) -> None:
        return None


_marks: WeakValueDictionary[int, _Mark] = WeakValueDictionary()


def mark(nodes: Iterable[Any]) -> None:
    """Mark nodes as released."""
    for node in nodes:
        number = node._unique_id()
        if number not in _marks:
            hook = _Mark()
            node.register_hook(hook)
            _marks[number] = hook


def marked(nodes: dict[int, Any]) -> Any | None:
    """Return a released one of some nodes, given by number; None if all are alive."""
    if not _marks:
        return None
    return next((node for number, node in nodes.items() if number in _marks), None)

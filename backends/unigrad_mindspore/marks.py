"""Release nodes: each is marked, and cut from those below, so that what they saved is freed.

A mark is a hook on its node, so that it lives as long as the node and no longer. MindSpore does not tell that a graph was
released before a second backward has run a part of it, and it gives the numbers of dead nodes to new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

__all__ = ["marked", "release"]


class _Mark:
    """Hook that does nothing."""

    __slots__ = ("__weakref__",)

    def __call__(self, *values: Any) -> None:
        return None


_marks: WeakValueDictionary[int, _Mark] = WeakValueDictionary()


def release(nodes: Mapping[int, Any]) -> None:
    """Mark nodes, given by number, as released, and cut them from what is below."""
    for number, node in nodes.items():
        if number not in _marks:
            hook = _Mark()
            node.register_hook(hook)
            _marks[number] = hook
        for index, (below, _) in enumerate(node.next_functions):
            if below is not None:
                node._set_next_edge(index, None)


def marked(nodes: Mapping[int, Any]) -> Any | None:
    """Return a released one of some nodes, given by number; None if all are alive."""
    if not _marks:
        return None
    return next((node for number, node in nodes.items() if number in _marks), None)

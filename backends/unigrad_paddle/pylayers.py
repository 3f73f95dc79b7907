"""Which nodes of a ``PyLayer`` can still be run; taken note of when they are made, since a node does not tell.

Paddle 3.3.1 drops the context of a ``PyLayer`` when its node is run, whether or not the graph is retained, and ends the process when it
is run again. ``paddle.grad`` runs copies of the nodes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import paddle
from paddle.base.core import eager

from unigrad_paddle.engines import runs_copies
from unigrad_paddle.faults import kept
from unigrad_paddle.framework import Tensor, node_of
from unigrad_paddle.marks import Marks

__all__ = ["PREFIX", "first_nested", "first_spent"]

PREFIX = "GradNodePyLayer"
"""Beginning of the names of such nodes."""

_CONTEXTS = Marks()
"""Nodes with a weak reference to their context."""
_NESTED = Marks()
"""Nodes with outputs inside of lists, at which Paddle dies unless each of these gets a gradient."""

_Context: Any = paddle.autograd.py_layer.PyLayerBackward
_apply: Any = vars(eager.PyLayer)["apply"]
_init: Any = _Context.__init__


class _Local(threading.local):
    context: Any = None


_local = _Local()


def _made(self: Any, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    if _local.context is None:  # those of layers applied inside come later
        _local.context = weakref.ref(self)


def _backward(self: Any, *args: Any) -> Any:
    if not runs_copies():
        self._unigrad_spent = True
    with kept():
        return self._forward_cls.backward(self, *args)


def _applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
    before, _local.context = _local.context, None
    try:
        outputs = _apply.__get__(None, cls)(*args, **kwargs)
        context = _local.context
    finally:
        _local.context = before
    several = outputs if isinstance(outputs, list | tuple) else [outputs]
    first = next((one for one in several if isinstance(one, Tensor) and not one.stop_gradient), None)
    node = None if first is None else node_of(first)
    if node is not None and node.name().startswith(PREFIX):
        _CONTEXTS.add([node], context)
        if any(isinstance(one, list | tuple) and any(isinstance(part, Tensor) for part in one) for one in several):
            _NESTED.add([node])
    return outputs


def first_spent(nodes: Sequence[Any]) -> Any | None:
    """Return the first of the nodes that has been run, None if there is none, or none that is known."""
    for node in nodes:
        reference = _CONTEXTS.value(node)
        if reference is not None:
            context = reference()
            if context is None or hasattr(context, "_unigrad_spent"):
                return node
    return None


def first_nested(nodes: Sequence[Any]) -> Any | None:
    """Return the first of the nodes that has outputs inside of lists, None if there is none."""
    return next((node for node in nodes if _NESTED.value(node) is not None), None)


_Context.__init__ = _made
_Context.backward = _backward
paddle.autograd.PyLayer.apply = classmethod(_applied)

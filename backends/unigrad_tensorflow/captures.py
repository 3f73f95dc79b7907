"""Whether a tensor that a region captures needs a gradient, where no record of ours tells: under a tape of the user's, or in a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unigrad_tensorflow.graph import Leaf, is_cut, node_of
from unigrad_tensorflow.private import should_record_outside

__all__ = ["foreign", "watched"]


def watched(tensor: Any) -> bool:
    """Whether a tape that was opened before the region wants the gradient of a tensor."""
    return should_record_outside([tensor])


def foreign(others: bool) -> Callable[[Any], bool] | None:
    """Return a function that tells whether a tensor was made before now and needs a gradient, None where none can.

    Parameters
    ----------
    others
        Whether a tape of somebody else records.
    """
    if tf.executing_eagerly():
        return watched if others else None
    graph = tf.compat.v1.get_default_graph()
    count = len(graph.get_operations())
    older: set[int] = set()

    def needs(tensor: Any) -> bool:
        if not tf.is_symbolic_tensor(tensor):
            return watched(tensor)
        if not older:
            older.update(id(operation) for operation in graph.get_operations()[:count])
        return id(tensor.op) in older and (watched(tensor) or _reaches(graph, tensor))

    return needs


def _reaches(graph: Any, tensor: Any) -> bool:
    """Walk a traced function from a tensor down to variables that take gradients and arguments that may."""
    outside = {id(inner): outer for outer, inner in getattr(graph, "captures", ())}
    stack, seen = [tensor], {id(tensor.op)}
    while stack:
        tensor = stack.pop()
        operation = tensor.op
        if operation.type == "Placeholder":
            outer = outside.get(id(tensor))
            if tensor.dtype == tf.resource:
                leaf = None if outer is None else node_of(outer)
                if leaf is None or not isinstance(leaf, Leaf) or leaf.trainable():
                    return True
            elif tensor.dtype.is_floating and (outer is None or node_of(outer) is not None or watched(outer)):
                return True
            continue
        if is_cut(operation.type):
            continue
        for below in operation.inputs:
            if id(below.op) not in seen:
                seen.add(id(below.op))
                stack.append(below)
    return False

"""When a recompute may run: in a ``tf.function`` nothing but dependencies says so, and without them all would run at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import tensorflow as tf

from unigrad_tensorflow.private import automatic_dependencies, compiled_by_xla, identity, wait

__all__ = ["Turn", "turn"]

_LATEST = "_unigrad_latest"
"""Attribute of a graph: what comes after the recompute that was built last."""


class Turn:
    """The time of one recompute.

    Parameters
    ----------
    graph
        The graph that is being built; None where operations run at once.
    gradients
        What has come back to the outputs of the region.
    automatic
        Orders what reads and writes variables inside, where nobody else does.
    """

    def __init__(self, graph: Any, gradients: Sequence[Any], automatic: Any) -> None:
        self._graph = graph
        self._automatic = automatic
        if graph is not None:
            self._zero = _zero(gradients) if compiled_by_xla(graph) else None
            self._start = len(graph.get_operations())

    def ready(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs of the recompute, which wait for the turn.

        XLA forgets control dependencies. There a zero is added that only an optimizer could know to be one; elsewhere the sum would be
        another copy of an input that somebody else holds too.
        """
        if self._graph is None:
            return list(inputs)
        zero = self._zero
        return [
            identity(tensor if zero is None or not tensor.dtype.is_floating else tensor + tf.cast(zero, tensor.dtype))
            for tensor in inputs
        ]

    def checked(self, check: Callable[[], None], gradients: list[Any]) -> list[Any]:
        """Call ``check`` and return the gradients, which wait for what it has put into the graph."""
        if self._graph is None:
            check()
            return gradients
        before = len(self._graph.get_operations())
        check()
        with tf.control_dependencies(self._graph.get_operations()[before:]):
            return [identity(gradient) for gradient in gradients]

    def done(self, inputs: list[Any], others: list[Any]) -> list[Any]:
        """Return the gradients of the inputs and the others, for which the next turn waits.

        Parameters
        ----------
        inputs
            Gradients of the region's inputs. What leads on from them waits for the others, which need inner values of the region.
            Nothing waits for these themselves, since that of an argument of the traced function is seldom asked for.
        others
            Gradients of what is used inside.
        """
        if self._graph is None:
            return inputs + others
        last = [_values(found) for found in others if found is not None] or [
            _values(found) for found in inputs if found is not None
        ]
        self._line_up(last)
        with tf.control_dependencies(last):
            result = [
                found if found is None or isinstance(found, tf.IndexedSlices) else identity(found)
                for found in inputs + others
            ]
        if self._automatic is not None:
            result = [found if found is None else self._automatic.mark_as_return(found) for found in result]
        with tf.control_dependencies(last):
            setattr(self._graph, _LATEST, [tf.no_op()])
        return result

    def _line_up(self, last: Sequence[Any]) -> None:
        """Let each of these run alone, after what was built before it and before what was built after it.

        The executor may else run the backward of many layers first, and keep all that the gradients of their parameters need.
        """
        built = self._graph.get_operations()[self._start :]
        needed = _behind(last, {id(operation) for operation in built})
        alone = {id(tensor.op) for tensor in last}
        for earlier, later in pairwise(operation for operation in built if id(operation) in needed):
            if id(earlier) in alone or id(later) in alone:
                wait(later, earlier)


@contextmanager
def turn(gradients: Sequence[Any]) -> Iterator[Turn]:
    """Let all inside wait for ``gradients``, and for the recompute before.

    Parameters
    ----------
    gradients
        What has come back to the outputs of a region.
    """
    if tf.executing_eagerly():
        yield Turn(None, gradients, None)
        return
    graph = tf.compat.v1.get_default_graph()
    with ExitStack() as stack:
        # The layers around the region are not called again, and a name that begins with "_" is allowed inside of another only.
        stack.enter_context(tf.name_scope("recompute"))
        # A function that is differentiated from outside has a graph for its backward, in which nobody orders the use of variables.
        automatic = automatic_dependencies(graph)
        if automatic is not None:
            stack.enter_context(automatic)
        stack.enter_context(tf.control_dependencies([*gradients, *getattr(graph, _LATEST, ())]))
        yield Turn(graph, gradients, automatic)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _behind(tensors: Sequence[Any], among: Collection[int]) -> set[int]:
    """Return the ids of the operations that lead to the tensors, of those with certain ids."""
    found: set[int] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        operation = waiting.pop()
        if id(operation) in among and id(operation) not in found:
            found.add(id(operation))
            waiting += [tensor.op for tensor in operation.inputs]
    return found


def _zero(gradients: Sequence[Any]) -> Any:
    for gradient in gradients:
        if gradient.dtype.is_floating:
            first = tf.reduce_max(tf.reshape(gradient, [-1])[:1])
            truth = tf.cast(first, tf.bool)
            return tf.where(tf.equal(truth, truth), 0.0, float("nan"))
    return None

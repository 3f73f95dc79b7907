"""When a recompute may run: in a ``tf.function`` nothing but dependencies says so, and without them all would run at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from unigrad_tensorflow.private import automatic_dependencies, identity

__all__ = ["Turn", "turn"]

_latest: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""For each graph the results of the recompute that was built last."""


class Turn:
    """The time of one recompute.

    Parameters
    ----------
    gradients
        What has come back to its outputs.
    automatic
        Orders what reads and writes variables inside, where nobody else does.
    """

    def __init__(self, gradients: Sequence[Any], automatic: Any) -> None:
        self._automatic = automatic
        self._zero = None if tf.executing_eagerly() else _zero(gradients)

    def ready(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs of the recompute, which wait for the turn.

        XLA forgets control dependencies, and without XLA the executor starts whatever has its data: so there is one of each kind. The
        data one adds a zero that only an optimizer could know to be one.
        """
        if tf.executing_eagerly():
            return list(inputs)
        zero = self._zero
        return [
            identity(tensor if zero is None or not tensor.dtype.is_floating else tensor + tf.cast(zero, tensor.dtype))
            for tensor in inputs
        ]

    def done(self, found: list[Any]) -> list[Any]:
        """Return the results, which wait for each other, and for which the next turn waits."""
        if tf.executing_eagerly():
            return found
        values = [
            value.values if isinstance(value, tf.IndexedSlices) else value for value in found if value is not None
        ]
        with tf.control_dependencies(values):
            result = [
                value if value is None or isinstance(value, tf.IndexedSlices) else identity(value) for value in found
            ]
        if self._automatic is not None:
            result = [value if value is None else self._automatic.mark_as_return(value) for value in result]
        graph = tf.compat.v1.get_default_graph()
        _latest[graph] = [value for value in result if isinstance(value, tf.Tensor)][:1]
        return result


@contextmanager
def turn(gradients: Sequence[Any]) -> Iterator[Turn]:
    """Let all inside wait for ``gradients``, and for the recompute before.

    Parameters
    ----------
    gradients
        What has come back to the outputs of a region.
    """
    if tf.executing_eagerly():
        yield Turn(gradients, None)
        return
    graph = tf.compat.v1.get_default_graph()
    with ExitStack() as stack:
        # A function that is differentiated from outside has a graph for its backward, in which nobody orders the use of variables.
        automatic = automatic_dependencies(graph)
        if automatic is not None:
            stack.enter_context(automatic)
        stack.enter_context(tf.control_dependencies([*gradients, *_latest.get(graph, ())]))
        yield Turn(gradients, automatic)


def _zero(gradients: Sequence[Any]) -> Any:
    for gradient in gradients:
        if gradient.dtype.is_floating:
            first = tf.reduce_max(tf.reshape(gradient, [-1])[:1])
            truth = tf.cast(first, tf.bool)
            return tf.where(tf.equal(truth, truth), 0.0, float("nan"))
    return None

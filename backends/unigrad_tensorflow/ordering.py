"""When a recompute may run: in a ``tf.function`` nothing but dependencies says so, and without them all would run at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from unigrad_tensorflow.private import identity

__all__ = ["after"]

_latest: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""For each graph the results of the recompute that was built last."""


def after(inputs: Sequence[Any], gradients: Sequence[Any]) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
    """Let what is computed from ``inputs`` wait for ``gradients``, and for the recompute before.

    Parameters
    ----------
    inputs
        Inputs of a recompute.
    gradients
        What has come back to its outputs.

    Returns
    -------
    tuple
        The inputs, and a function that makes the results wait for each other.

    Notes
    -----
    XLA forgets control dependencies, and the executor without XLA starts whatever has its data: so there is one of each kind. The
    data one adds a zero that only the optimizer could know to be one.
    """
    if tf.executing_eagerly():
        return list(inputs), lambda found: found
    graph = tf.compat.v1.get_default_graph()
    before = [tensor for tensor in _latest.get(graph, ()) if tensor is not None]
    waits = [*gradients, *before]
    zero = _zero(gradients)
    with tf.control_dependencies(waits):
        ready = [
            identity(tensor if zero is None or not tensor.dtype.is_floating else tensor + tf.cast(zero, tensor.dtype))
            for tensor in inputs
        ]

    def done(found: list[Any]) -> list[Any]:
        values = [
            value.values if isinstance(value, tf.IndexedSlices) else value for value in found if value is not None
        ]
        with tf.control_dependencies(values):
            result = [
                value if value is None or isinstance(value, tf.IndexedSlices) else identity(value) for value in found
            ]
        _latest[graph] = [value for value in result if isinstance(value, tf.Tensor)][:1]
        return result

    return ready, done


def _zero(gradients: Sequence[Any]) -> Any:
    for gradient in gradients:
        if gradient.dtype.is_floating:
            first = tf.reduce_max(tf.reshape(gradient, [-1])[:1])
            truth = tf.cast(first, tf.bool)
            return tf.where(tf.equal(truth, truth), 0.0, float("nan"))
    return None

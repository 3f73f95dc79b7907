"""Operations recorded by hand, and how the parts of a batch bring the gradients of their variables together, one part after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from unigrad_tensorflow.private import identity, record_operation, stop_recording

__all__ = ["TOKEN", "Link", "dense", "handed_on", "operation"]

TOKEN = "token"
"""Key of a number that depends on the part before."""


def dense(gradient: Any) -> Any:
    """Return a gradient as one tensor."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def operation(outputs: list[Any], backward: Callable[[Sequence[Any]], list[Any]], inputs: Sequence[Any]) -> list[Any]:
    """Record ``outputs`` as the result of one operation of ``inputs``, and return them as such."""
    if tf.executing_eagerly():
        # tf.custom_gradient would keep what it has returned, as long as the tape lives
        with stop_recording():
            made = [identity(tensor) for tensor in outputs]
        record_operation("UnigradRegion", made, inputs, lambda *gradients: backward(gradients))
        return made

    @tf.custom_gradient
    def recorded(*given: Any) -> Any:
        def gradient(*gradients: Any, variables: Any = None) -> Any:
            found = backward(gradients)
            return (found, [None] * len(variables)) if variables else found

        return tuple(outputs), gradient

    try:
        return list(recorded(*inputs))
    finally:
        outputs = []  # the function above would keep what it has returned


class Link:
    """What a backward has brought to the variables of one part: a tape gives zeros where it has brought nothing."""

    __slots__ = ("after", "own")

    def __init__(self) -> None:
        self.own: set[int] = set()
        self.after: set[int] = set()


def handed_on(variables: Sequence[Any], shared: dict[Any, Any]) -> tuple[list[Any], Link]:
    """Return the values of variables, which one part of a batch hands on to the next.

    A tape keeps all contributions to the gradient of a variable until it has the last one. On the way back through the parts, the last
    one first, each adds its own to those of the parts after it, so that there are two at a time.

    Parameters
    ----------
    variables
        What the part uses.
    shared
        What the parts before have left, and what this one leaves.

    Returns
    -------
    tuple
        The values, and where the part is to say by id which of its variables have a gradient.
    """
    link = Link()
    before = [shared.get(id(variable)) for variable in variables]
    given = [variable.read_value() if one is None else one[0] for variable, one in zip(variables, before, strict=True)]
    count = len(given)
    token = [shared[TOKEN]] if TOKEN in shared else []

    def add(gradients: Sequence[Any]) -> list[Any]:
        found: list[Any] = []
        own, after = gradients[:count], gradients[count:]
        # In a trace: without, TensorFlow joins all these sums into one, at the end.
        with tf.control_dependencies(() if tf.executing_eagerly() else [dense(gradient) for gradient in own]):
            for variable, one, other, source in zip(variables, own, after, before, strict=True):
                key = id(variable)
                parts = [dense(gradient) for gradient, known in ((one, link.own), (other, link.after)) if key in known]
                if parts and source is not None:
                    source[1].after.add(key)
                found.append(sum(parts[1:], parts[0]) if parts else None)
        link.own.clear()
        link.after.clear()
        if token:
            with tf.control_dependencies(() if tf.executing_eagerly() else [one for one in found if one is not None]):
                found.append(tf.identity(tf.zeros(())))
        return found

    made = operation(given * 2, add, [*given, *token])
    for variable, left in zip(variables, made[count:], strict=True):
        shared[id(variable)] = left, link
    return made[:count], link

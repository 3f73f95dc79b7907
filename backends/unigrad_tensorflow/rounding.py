"""Keep TensorFlow's graph optimizer from rounding the forward of a region otherwise than its recompute.

In a ``tf.function`` the optimizer joins operations where nobody else needs what lies between: products with constants, a convolution and
the normalization behind it, the formula of a GELU. In the forward of a region nobody does, in the recompute the gradients do. So in both
the first element of such values is read, and what compares forward and recompute depends on it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from unigrad_tensorflow.private import wait

__all__ = ["Witness", "depending", "seen", "witnessed"]

# Nothing is rounded by them.
_MOVES = {"Cast", "ConcatV2", "Const", "ExpandDims", "Identity", "NoOp", "Pack", "Placeholder", "ReadVariableOp"}
_MOVES |= {"Reshape", "Shape", "Slice", "Split", "SplitV", "Squeeze", "StridedSlice", "Transpose"}
# Pairs of which no gradient needs what lies between: they are joined in a recompute too.
_PRODUCTS = {"BatchMatMulV2", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul"}
_SUMS = {"Add", "AddV2", "BiasAdd"}
_ACTIVATIONS = {"Elu", "Relu", "Relu6", "Sigmoid", "Tanh"}


class _Local(threading.local):
    witnesses: tuple[Any, ...] = ()


_local = _Local()


class Witness:
    """What depends on the inner values of one run of a function; nothing where operations run at once."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number: Any = None


@contextmanager
def witnessed(witness: Witness) -> Iterator[None]:
    """Let a witness depend on what is put into the present graph inside."""
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    found = [_read(value) for operation in graph.get_operations()[before:] for value in _between(operation)]
    if found:
        witness.number = tf.add_n(found)


def _between(operation: Any) -> list[Any]:
    """Return the outputs of an operation that the optimizer might do away with."""
    if operation.type in _MOVES:
        return []
    found = []
    for value in operation.outputs:
        consumers = value.consumers()
        if len(consumers) != 1 or not (value.dtype.is_floating or value.dtype.is_complex) or 0 in value.shape:
            continue
        after = consumers[0].type
        if not (
            (operation.type in _PRODUCTS and after in _SUMS) or (operation.type in _SUMS and after in _ACTIVATIONS)
        ):
            found.append(value)
    return found


def _read(value: Any) -> Any:
    """Return the first element, read before the one operation runs that needs the value, which would else be kept for it."""
    (consumer,) = value.consumers()
    if value.shape.rank == 0:
        return tf.cast(tf.math.real(value), tf.float32)
    if value.shape.is_fully_defined():
        one = tf.slice(value, [0] * value.shape.rank, [1] * value.shape.rank)
    else:
        one = tf.reduce_sum(tf.reshape(value, [-1])[:1])
    wait(consumer, one.op)
    return tf.cast(tf.math.real(tf.reshape(one, [])), tf.float32)


@contextmanager
def depending(witnesses: Sequence[Witness]) -> Iterator[None]:
    """Let what is compared inside depend on witnesses."""
    before = _local.witnesses
    _local.witnesses = tuple(witness.number for witness in witnesses if witness.number is not None)
    try:
        yield
    finally:
        _local.witnesses = before


def seen(truth: Any) -> Any:
    """Return a truth as it is, in a way that needs the witnesses."""
    for number in _local.witnesses:
        truth = tf.logical_or(truth, tf.logical_and(tf.math.is_nan(number), truth))
    return truth

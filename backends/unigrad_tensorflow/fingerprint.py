"""A small value that tells whether any bit of a tensor differs: a digest, or in a trace a number that is compared when it runs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tensorflow as tf

from unigrad.fingerprint import digest
from unigrad_tensorflow.arrays import memory_of, value

__all__ = ["fingerprint"]

_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
_ODD = 0x1E3779B1
"""Spreads the position of an element over the bits."""
_MESSAGE = (
    "the recompute of a checkpointed region differs from its forward. The function must do the same on each call: look for state that "
    "it changes or reads (counters, flags) and for unregistered random generators"
)


class _Traced:
    """Sum of the bits of a symbolic tensor, weighted by position; a comparison becomes a part of the traced function."""

    __slots__ = ("sum",)

    def __init__(self, tensor: Any) -> None:
        flat = tf.reshape(tensor, [-1])
        if flat.dtype == tf.bool:
            flat = tf.cast(flat, tf.int8)
        elif flat.dtype.is_complex:
            flat = tf.reshape(tf.stack([tf.math.real(flat), tf.math.imag(flat)]), [-1])
        words = tf.bitcast(flat, _INTEGERS[flat.dtype.size])
        kind = tf.int64 if words.dtype == tf.int64 else tf.int32
        places = tf.range(tf.size(flat, kind)) * tf.constant(_ODD, kind) + 1
        self.sum = tf.reduce_sum(tf.bitwise.bitwise_or(places, tf.ones((), kind)) * tf.cast(words, kind))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Traced):
            return NotImplemented
        tf.debugging.Assert(tf.equal(self.sum, other.sum), [_MESSAGE])
        return True

    __hash__ = None  # type: ignore[assignment]


def fingerprint(tensor: Any) -> Hashable:
    """Return a digest of the bits of the tensor, or what stands for it in a trace."""
    if tf.is_symbolic_tensor(tensor):
        return _Traced(tensor)  # type: ignore[return-value]  # compared, never hashed
    return digest(memory_of(value(tensor)))

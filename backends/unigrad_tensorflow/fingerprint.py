"""A small value that tells whether any bit of a tensor differs: a digest, or in a trace a number that is compared when it runs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import tensorflow as tf

from unigrad.fingerprint import digest
from unigrad_tensorflow.arrays import memory_of, value
from unigrad_tensorflow.rounding import seen

__all__ = ["fingerprint"]

_INTEGERS = {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}
_ODD = 0x1E3779B1
"""Spreads the position of an element over the bits."""
_SMALL = 1 << 16
"""Elements that are summed at once."""
_BLOCKS = 16
_ALIGNED = 64
"""A slice that begins at a multiple of this many elements shares the memory of the whole."""
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
        size = words.shape[0]
        if size is None or size <= _SMALL:
            self.sum = _weighted(words, _places(tf.size(words)))
            return
        step = -(-size // (_BLOCKS * _ALIGNED)) * _ALIGNED
        places = _places(step)
        sums: list[Any] = []
        for start in range(0, size, step):
            with tf.control_dependencies(sums[-1:]):  # at once they would need as much memory as the tensor
                block = words[start : start + step]
                sums.append(_weighted(block, places[: block.shape[0]]))
        self.sum = _weighted(tf.stack(sums), _places(len(sums)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Traced):
            return NotImplemented
        tf.debugging.Assert(seen(tf.equal(self.sum, other.sum)), [_MESSAGE])
        return True

    __hash__ = None  # type: ignore[assignment]


def _places(count: Any) -> Any:
    return tf.bitwise.bitwise_or(tf.range(count, dtype=tf.int32) * tf.constant(_ODD, tf.int32) + 1, 1)


def _weighted(words: Any, places: Any) -> Any:
    kind = tf.int64 if words.dtype == tf.int64 else tf.int32
    words = tf.cast(words, kind)
    # the upper bits into the lower ones: else two flipped signs, the highest bit times an odd number, would vanish in the sum
    words += tf.bitwise.right_shift(words, tf.constant(kind.size * 4, kind))
    return tf.reduce_sum(tf.cast(places, kind) * words)


def fingerprint(tensor: Any) -> Hashable:
    """Return a digest of the bits of the tensor, or what stands for it in a trace."""
    if tf.is_symbolic_tensor(tensor):
        return _Traced(tensor)  # type: ignore[return-value]  # compared, never hashed
    return digest(memory_of(value(tensor)))

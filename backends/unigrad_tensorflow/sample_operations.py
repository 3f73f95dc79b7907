"""The suite's native operations: TensorFlow's own functions under the names of their mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["Operations", "gelu"]


def _tensor(x: Any) -> Any:
    return tf.convert_to_tensor(x) if isinstance(x, keras.Variable) else x


def gelu(x: Any) -> Any:
    """Return ``x`` times the normal distribution; tf.nn.gelu has its constant in single precision, also for float64."""
    return x * (0.5 + 0.5 * tf.math.erf(x * tf.constant(np.sqrt(0.5), x.dtype)))


class Operations:
    """Operations on tensors, all recorded."""

    exp = staticmethod(lambda x: tf.exp(_tensor(x)))
    log = staticmethod(lambda x: tf.math.log(_tensor(x)))
    sqrt = staticmethod(lambda x: tf.sqrt(_tensor(x)))
    tanh = staticmethod(lambda x: tf.tanh(_tensor(x)))
    sin = staticmethod(lambda x: tf.sin(_tensor(x)))
    cos = staticmethod(lambda x: tf.cos(_tensor(x)))
    sigmoid = staticmethod(lambda x: tf.sigmoid(_tensor(x)))
    relu = staticmethod(lambda x: tf.nn.relu(_tensor(x)))
    relu6 = staticmethod(lambda x: tf.nn.relu6(_tensor(x)))
    gelu = staticmethod(lambda x: gelu(_tensor(x)))
    absolute = staticmethod(lambda x: tf.abs(_tensor(x)))
    round = staticmethod(lambda x: tf.round(_tensor(x)))
    sign = staticmethod(lambda x: tf.sign(_tensor(x)))
    argmax = staticmethod(lambda x: tf.argmax(tf.reshape(x, (-1,))))
    norm = staticmethod(lambda x: tf.norm(_tensor(x)))

    @staticmethod
    def hardswish(x: Any) -> Any:
        """Return ``x`` times a clipped ramp."""
        return keras.activations.hard_swish(_tensor(x))

    @staticmethod
    def softmax(x: Any, axis: int) -> Any:
        """Softmax along ``axis``."""
        return tf.nn.softmax(_tensor(x), axis)

    @staticmethod
    def maximum(x: Any, y: Any) -> Any:
        """Return the larger of two."""
        return tf.maximum(_tensor(x), _tensor(y))

    @staticmethod
    def minimum_value(x: Any, value: float) -> Any:
        """Clamp from below."""
        return tf.maximum(_tensor(x), tf.cast(value, x.dtype))

    @staticmethod
    def sum(x: Any, axis: int | None = None) -> Any:
        """Sum over all elements or along ``axis``."""
        return tf.reduce_sum(_tensor(x), axis)

    @staticmethod
    def mean(x: Any, axis: int | None = None) -> Any:
        """Mean over all elements or along ``axis``."""
        return tf.reduce_mean(_tensor(x), axis)

    @staticmethod
    def max(x: Any, axis: int | None = None) -> Any:
        """Maximum over all elements or along ``axis``."""
        return tf.reduce_max(_tensor(x), axis)

    @staticmethod
    def matmul(x: Any, y: Any) -> Any:
        """Return the product of matrices, vectors included."""
        x, y = _tensor(x), _tensor(y)
        if len(y.shape) == 1:
            return tf.linalg.matvec(x, y)
        return tf.matmul(x, y)

    @staticmethod
    def reshape(x: Any, shape: Sequence[int]) -> Any:
        """Return the tensor in another shape."""
        return tf.reshape(_tensor(x), tuple(shape))

    @staticmethod
    def transpose(x: Any, axes: Sequence[int]) -> Any:
        """Return the tensor with its axes in another order."""
        return tf.transpose(_tensor(x), tuple(axes))

    @staticmethod
    def index(x: Any, key: Any) -> Any:
        """Return ``x[key]``."""
        return tf.gather(x, key) if isinstance(key, np.ndarray) else _tensor(x)[key]

    @staticmethod
    def take(table: Any, ids: Any) -> Any:
        """Rows of ``table`` at ``ids``."""
        return tf.gather(table._value if isinstance(table, keras.Variable) else table, ids)

    @staticmethod
    def concat(tensors: Sequence[Any], axis: int) -> Any:
        """Join along ``axis``."""
        return tf.concat([_tensor(x) for x in tensors], axis)

    @staticmethod
    def split(x: Any, parts: int, axis: int) -> Sequence[Any]:
        """Equal parts along ``axis``, all from one operation."""
        found: Sequence[Any] = tf.split(_tensor(x), parts, axis)
        return found

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Any:
        """Elements of ``x`` where the condition holds, else of ``y``."""
        return tf.where(condition, _tensor(x), _tensor(y))

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """Return the values without their graph."""
        return tf.stop_gradient(_tensor(x))

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """Return the tensor in another dtype."""
        return tf.cast(_tensor(x), dtype)

    @staticmethod
    def set_item(x: Any, index: int, value: float) -> Any:
        """Return a tensor with one element overwritten; tensors can't be written in place."""
        x = _tensor(x)
        return tf.tensor_scatter_nd_update(x, [[index]], tf.cast([value], x.dtype))

    @staticmethod
    def dropout(x: Any, rate: float) -> Any:
        """Dropout that is always on."""
        return keras.random.dropout(_tensor(x), rate)

    @staticmethod
    def normal(shape: Sequence[int]) -> Any:
        """Draw standard normal noise from the global generator."""
        return keras.random.normal(tuple(shape))

    @staticmethod
    def uniform(shape: Sequence[int]) -> Any:
        """Draw uniform noise from the global generator."""
        return keras.random.uniform(tuple(shape))

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        """Return the mean over the batch."""
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, _tensor(logits)))

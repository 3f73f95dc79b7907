"""The suite's native operations: Paddle's own functions under the names of their mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional


class Operations:
    """Operations on tensors, all recorded."""

    exp = staticmethod(paddle.exp)
    log = staticmethod(paddle.log)
    sqrt = staticmethod(paddle.sqrt)
    tanh = staticmethod(paddle.tanh)
    sin = staticmethod(paddle.sin)
    cos = staticmethod(paddle.cos)
    sigmoid = staticmethod(functional.sigmoid)
    relu = staticmethod(functional.relu)
    relu6 = staticmethod(functional.relu6)
    gelu = staticmethod(functional.gelu)
    hardswish = staticmethod(functional.hardswish)
    absolute = staticmethod(paddle.abs)
    round = staticmethod(paddle.round)
    sign = staticmethod(paddle.sign)
    maximum = staticmethod(paddle.maximum)
    argmax = staticmethod(paddle.argmax)
    matmul = staticmethod(paddle.matmul)
    norm = staticmethod(paddle.linalg.norm)
    cross_entropy = staticmethod(functional.cross_entropy)

    @staticmethod
    def softmax(x: Any, axis: int) -> Any:
        """Softmax along ``axis``."""
        return functional.softmax(x, axis)

    @staticmethod
    def minimum_value(x: Any, value: float) -> Any:
        """Clamp from below."""
        return paddle.clip(x, min=value)

    @staticmethod
    def sum(x: Any, axis: int | None = None) -> Any:
        """Sum over all elements or along ``axis``."""
        return paddle.sum(x, axis)

    @staticmethod
    def mean(x: Any, axis: int | None = None) -> Any:
        """Mean over all elements or along ``axis``."""
        return paddle.mean(x, axis)

    @staticmethod
    def max(x: Any, axis: int | None = None) -> Any:
        """Maximum over all elements or along ``axis``."""
        return paddle.max(x, axis)

    @staticmethod
    def reshape(x: Any, shape: Sequence[int]) -> Any:
        """Return the tensor in another shape."""
        return paddle.reshape(x, list(shape))

    @staticmethod
    def transpose(x: Any, axes: Sequence[int]) -> Any:
        """Return the tensor with its axes in another order."""
        return paddle.transpose(x, list(axes))

    @staticmethod
    def index(x: Any, key: Any) -> Any:
        """Return ``x[key]``."""
        return paddle.gather(x, paddle.to_tensor(key)) if isinstance(key, np.ndarray) else x[key]

    @staticmethod
    def take(table: Any, ids: Any) -> Any:
        """Rows of ``table`` at ``ids``."""
        return functional.embedding(ids, table)

    @staticmethod
    def concat(tensors: Sequence[Any], axis: int) -> Any:
        """Join along ``axis``."""
        return paddle.concat(list(tensors), axis)

    @staticmethod
    def split(x: Any, parts: int, axis: int) -> Sequence[Any]:
        """Equal parts along ``axis``, all from one node."""
        found: Sequence[Any] = paddle.split(x, parts, axis)
        return found

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Any:
        """Elements of ``x`` where the condition holds, else of ``y``."""
        return paddle.where(condition, x, y)

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """Return the values without their graph."""
        return x.detach()

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """Return the tensor in another dtype."""
        return x.astype(dtype)

    @staticmethod
    def set_item(x: Any, index: int, value: float) -> Any:
        """Overwrite one element in place."""
        x[index] = value
        return x

    @staticmethod
    def dropout(x: Any, rate: float) -> Any:
        """Dropout that is always on."""
        return functional.dropout(x, rate, training=True)

    @staticmethod
    def normal(shape: Sequence[int]) -> Any:
        """Draw standard normal noise from the global generator."""
        return paddle.randn(list(shape))

    @staticmethod
    def uniform(shape: Sequence[int]) -> Any:
        """Draw uniform noise from the global generator."""
        return paddle.rand(list(shape))

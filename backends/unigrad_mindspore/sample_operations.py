"""The suite's native operations: MindSpore's own functions under the names of their mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops

from unigrad_mindspore.arrays import cast, concat, dtype


class _NoRows(mindspore._Function):  # type: ignore[misc]  # the framework has no types
    """A part that is nothing: the kernels of the gradients of ``gather`` and of slices refuse an empty one."""

    @staticmethod
    def forward(ctx: Any, table: Any, shape: tuple[int, ...]) -> Any:
        """Return no rows."""
        ctx.save_for_backward(table)
        return Tensor(np.zeros(shape), dtype=table.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        """Return zeros."""
        (table,) = ctx.saved_tensors
        return ops.zeros_like(table), None


class Operations:
    """Operations on tensors, all recorded."""

    exp = staticmethod(ops.exp)
    log = staticmethod(ops.log)
    sqrt = staticmethod(ops.sqrt)
    tanh = staticmethod(ops.tanh)
    sin = staticmethod(ops.sin)
    cos = staticmethod(ops.cos)
    sigmoid = staticmethod(ops.sigmoid)
    relu = staticmethod(ops.relu)
    relu6 = staticmethod(lambda x: ops.relu6(x) if dtype(x) != "float64" else ops.clamp(x, 0.0, 6.0))
    gelu = staticmethod(lambda x: ops.gelu(x, approximate="none"))
    hardswish = staticmethod(ops.hardswish)
    absolute = staticmethod(ops.abs)
    round = staticmethod(ops.round)
    sign = staticmethod(ops.sign)
    maximum = staticmethod(ops.maximum)
    argmax = staticmethod(lambda x: ops.argmax(x))
    matmul = staticmethod(ops.matmul)
    norm = staticmethod(lambda x: ops.norm(x))
    concat = staticmethod(concat)
    cast = staticmethod(cast)
    stop_gradient = staticmethod(ops.stop_gradient)

    @staticmethod
    def softmax(x: Any, axis: int) -> Any:
        """Softmax along ``axis``."""
        return ops.softmax(x, axis)

    @staticmethod
    def minimum_value(x: Any, value: float) -> Any:
        """Clamp from below."""
        return ops.clamp(x, value)

    @staticmethod
    def sum(x: Any, axis: int | None = None) -> Any:
        """Sum over all elements or along ``axis``."""
        return ops.sum(x) if axis is None else ops.sum(x, axis)

    @staticmethod
    def mean(x: Any, axis: int | None = None) -> Any:
        """Mean over all elements or along ``axis``."""
        return ops.mean(x) if axis is None else ops.mean(x, axis)

    @staticmethod
    def max(x: Any, axis: int | None = None) -> Any:
        """Maximum over all elements or along ``axis``."""
        return ops.amax(x) if axis is None else ops.amax(x, axis)

    @staticmethod
    def reshape(x: Any, shape: Sequence[int]) -> Any:
        """Return the tensor in another shape."""
        return ops.reshape(x, tuple(shape))

    @staticmethod
    def transpose(x: Any, axes: Sequence[int]) -> Any:
        """Return the tensor with its axes in another order."""
        return ops.transpose(x, tuple(axes))

    @staticmethod
    def index(x: Any, key: Any) -> Any:
        """Return ``x[key]``."""
        part = x[Tensor(np.asarray(key))] if isinstance(key, np.ndarray) else x[key]
        return part if part.size else _NoRows.apply(x, part.shape)

    @staticmethod
    def take(table: Any, ids: Any) -> Any:
        """Rows of ``table`` at ``ids``."""
        return ops.gather(table, ids, 0) if ids.size else _NoRows.apply(table, (*ids.shape, *table.shape[1:]))

    @staticmethod
    def split(x: Any, parts: int, axis: int) -> Sequence[Any]:
        """Equal parts along ``axis``, all from one node."""
        return ops.split(x, x.shape[axis] // parts, axis)

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Any:
        """Elements of ``x`` where the condition holds, else of ``y``."""
        return ops.where(condition, x, y)

    @staticmethod
    def set_item(x: Any, index: int, value: float) -> Any:
        """Return the tensor with one element overwritten; MindSpore has no recorded in-place writing."""
        here = Tensor((np.arange(x.size) == index).reshape(x.shape))
        return ops.where(here, value, x)

    @staticmethod
    def dropout(x: Any, rate: float) -> Any:
        """Dropout that is always on."""
        return ops.dropout(x, rate, training=True)

    @staticmethod
    def normal(shape: Sequence[int]) -> Any:
        """Draw standard normal noise."""
        return ops.standard_normal(tuple(shape))

    @staticmethod
    def uniform(shape: Sequence[int]) -> Any:
        """Draw uniform noise."""
        return ops.rand(*shape)

    @staticmethod
    def cross_entropy(logits: Any, labels: Any) -> Any:
        """Mean over the batch."""
        return ops.cross_entropy(logits, cast(labels, "int32"))

"""The suite's native operations: torch's own functions under the names of their mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional


class Operations:
    """Operations on tensors, all recorded."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    sqrt = staticmethod(torch.sqrt)
    tanh = staticmethod(torch.tanh)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    sigmoid = staticmethod(torch.sigmoid)
    relu = staticmethod(functional.relu)
    relu6 = staticmethod(functional.relu6)
    gelu = staticmethod(functional.gelu)
    hardswish = staticmethod(functional.hardswish)
    absolute = staticmethod(torch.abs)
    round = staticmethod(torch.round)
    sign = staticmethod(torch.sign)
    maximum = staticmethod(torch.maximum)
    argmax = staticmethod(torch.argmax)
    matmul = staticmethod(torch.matmul)
    norm = staticmethod(torch.linalg.vector_norm)
    cross_entropy = staticmethod(functional.cross_entropy)

    @staticmethod
    def softmax(x: Any, axis: int) -> Any:
        """Softmax along ``axis``."""
        return torch.softmax(x, axis)

    @staticmethod
    def minimum_value(x: Any, value: float) -> Any:
        """Clamp from below."""
        return torch.clamp(x, min=value)

    @staticmethod
    def sum(x: Any, axis: int | None = None) -> Any:
        """Sum over all elements or along ``axis``."""
        return torch.sum(x) if axis is None else torch.sum(x, axis)

    @staticmethod
    def mean(x: Any, axis: int | None = None) -> Any:
        """Mean over all elements or along ``axis``."""
        return torch.mean(x) if axis is None else torch.mean(x, axis)

    @staticmethod
    def max(x: Any, axis: int | None = None) -> Any:
        """Maximum over all elements or along ``axis``."""
        return torch.max(x) if axis is None else torch.max(x, axis).values

    @staticmethod
    def reshape(x: Any, shape: Sequence[int]) -> Any:
        """Return the tensor in another shape."""
        return torch.reshape(x, tuple(shape))

    @staticmethod
    def transpose(x: Any, axes: Sequence[int]) -> Any:
        """Return the tensor with its axes in another order."""
        return torch.permute(x, tuple(axes))

    @staticmethod
    def index(x: Any, key: Any) -> Any:
        """Return ``x[key]``."""
        return x[torch.from_numpy(key.copy())] if isinstance(key, np.ndarray) else x[key]

    @staticmethod
    def take(table: Any, ids: Any) -> Any:
        """Rows of ``table`` at ``ids``."""
        return functional.embedding(ids, table)

    @staticmethod
    def concat(tensors: Sequence[Any], axis: int) -> Any:
        """Join along ``axis``."""
        return torch.cat(tuple(tensors), axis)

    @staticmethod
    def split(x: Any, parts: int, axis: int) -> Sequence[Any]:
        """Equal parts along ``axis``, all from one node."""
        return torch.split(x, x.shape[axis] // parts, axis)

    @staticmethod
    def where(condition: Any, x: Any, y: Any) -> Any:
        """Elements of ``x`` where the condition holds, else of ``y``."""
        return torch.where(condition, x, y)

    @staticmethod
    def stop_gradient(x: Any) -> Any:
        """Return the values without their graph."""
        return x.detach()

    @staticmethod
    def cast(x: Any, dtype: str) -> Any:
        """Return the tensor in another dtype."""
        return x.to(getattr(torch, dtype))

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
        return torch.randn(tuple(shape))

    @staticmethod
    def uniform(shape: Sequence[int]) -> Any:
        """Draw uniform noise from the global generator."""
        return torch.rand(tuple(shape))

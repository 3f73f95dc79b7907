"""Dense layers, built at once or at the first call, and lookup tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy import ops
from unigrad_numpy.nn import init
from unigrad_numpy.nn.module import Module
from unigrad_numpy.ops.base import as_tensor
from unigrad_numpy.tensor import Tensor

__all__ = ["Dense", "Embedding", "LazyDense", "Linear"]


class Dense(Module):
    """``x @ weight.T + bias``.

    Parameters
    ----------
    inputs, outputs
        Lengths of the last axis before and after; the weight has shape ``(outputs, inputs)``.
    bias
        Whether there is a bias, shape ``(outputs,)``.
    dtype
        float32 or float64.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True, dtype: Any = np.float32) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.weight = init.fan_in_uniform((outputs, inputs), inputs, dtype)
        self.register_parameter("bias", init.fan_in_uniform((outputs,), inputs, dtype) if bias else None)

    def forward(self, x: Any) -> Tensor:
        """Map ``(..., inputs)`` to ``(..., outputs)``."""
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.inputs}, {self.outputs}, bias={vars(self)['_parameters']['bias'] is not None}"


Linear = Dense


class LazyDense(Module):
    """A :class:`Dense` layer that learns the number of inputs, and creates its parameters, at the first call.

    Parameters
    ----------
    outputs, bias, dtype
        As of :class:`Dense`.
    """

    def __init__(self, outputs: int, bias: bool = True, dtype: Any = np.float32) -> None:
        super().__init__()
        self.outputs, self.has_bias, self.dtype = outputs, bias, dtype
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    @property
    def pending(self) -> bool:
        """Whether the parameters do not exist yet."""
        return vars(self)["_parameters"]["weight"] is None

    def build(self, inputs: int) -> None:
        """Create the parameters for ``inputs`` features."""
        self.weight = init.fan_in_uniform((self.outputs, inputs), inputs, self.dtype)
        if self.has_bias:
            self.bias = init.fan_in_uniform((self.outputs,), inputs, self.dtype)
        self.built()

    def forward(self, x: Any) -> Tensor:
        """Map ``(..., inputs)`` to ``(..., outputs)``."""
        x = as_tensor(x)
        if self.pending:
            self.build(x.shape[-1])
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{self.outputs}, bias={self.has_bias}{', pending' if self.pending else ''}"


class Embedding(Module):
    """Look up rows of a table.

    Parameters
    ----------
    rows, features
        Shape of the table.
    padding_index
        A row that starts as zeros and gets no gradient.
    dtype
        float32 or float64.
    """

    def __init__(self, rows: int, features: int, padding_index: int | None = None, dtype: Any = np.float32) -> None:
        super().__init__()
        self.padding_index = padding_index
        self.weight = init.normal((rows, features), dtype)
        if padding_index is not None:
            self.weight[padding_index] = 0.0

    def forward(self, ids: Any) -> Tensor:
        """Map integers ``(...)`` to ``(..., features)``."""
        return ops.take(self.weight, ids, self.padding_index)

"""Layers without parameters that act on each element, and dropout."""

from __future__ import annotations

from typing import Any

from unigrad_numpy import ops
from unigrad_numpy.nn.module import Module
from unigrad_numpy.tensor import Tensor

__all__ = ["GELU", "Dropout", "Hardswish", "Identity", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Tanh"]


class ReLU(Module):
    """The larger of ``x`` and 0."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.relu(x)


class ReLU6(Module):
    """``x`` limited to 0 ... 6."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.relu6(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.tanh(x)


class Sigmoid(Module):
    """The logistic function."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.sigmoid(x)


class GELU(Module):
    """``x`` times the normal distribution function of ``x``."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.gelu(x)


class SiLU(Module):
    """``x`` times its logistic function."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.silu(x)


class Hardswish(Module):
    """``x * relu6(x + 3) / 6``."""

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.hardswish(x)


class Identity(Module):
    """The input itself."""

    def forward(self, x: Any) -> Any:
        """Return ``x``."""
        return x


class Softmax(Module):
    """Exponentials divided by their sum along ``axis``."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.softmax(x, self.axis)


class Dropout(Module):
    """Drop elements with probability ``rate`` in training."""

    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        if not 0 <= rate <= 1:
            raise ValueError(f"Dropout needs a rate from 0 to 1, not {rate}")
        self.rate = rate

    def forward(self, x: Any) -> Tensor:
        """Map any shape to the same shape."""
        return ops.dropout(x, self.rate, self.training)

    def extra_repr(self) -> str:
        """Return the settings."""
        return str(self.rate)

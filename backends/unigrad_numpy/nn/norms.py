"""Normalization layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unigrad_numpy import ops
from unigrad_numpy.nn import init
from unigrad_numpy.nn.module import Module
from unigrad_numpy.ops.base import float_tensor
from unigrad_numpy.tensor import Tensor

__all__ = ["BatchNorm", "LayerNorm"]


class BatchNorm(Module):
    """Normalize each channel over the batch in training, by running statistics in inference.

    Parameters
    ----------
    channels
        Length of axis 1.
    momentum
        Weight of the new value in the running statistics; the running variance is the unbiased one.
    epsilon
        Added to the variance.
    affine
        Whether there are a weight and a bias, shape ``(channels,)``.
    dtype
        float32 or float64.
    """

    def __init__(
        self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5, affine: bool = True, dtype: Any = np.float32
    ) -> None:
        super().__init__()
        self.momentum, self.epsilon = momentum, epsilon
        self.register_parameter("weight", init.full((channels,), 1, dtype) if affine else None)
        self.register_parameter("bias", init.full((channels,), 0, dtype) if affine else None)
        self.register_buffer("running_mean", Tensor(np.zeros(channels, dtype)))
        self.register_buffer("running_var", Tensor(np.ones(channels, dtype)))
        self.register_buffer("num_batches_tracked", Tensor(np.array(0, np.int64)))

    def forward(self, x: Any) -> Tensor:
        """Map ``(batch, channels)`` or ``(batch, channels, h, w)`` to the same shape."""
        x = float_tensor(x, "BatchNorm")
        if not self.training:
            return ops.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, self.epsilon)
        if x.ndim < 2 or x.shape[1] != self.running_mean.size:
            raise ValueError(f"BatchNorm of {self.running_mean.size} channels got an input of shape {x.shape}")
        count = x.size // x.shape[1]
        if count < 2:
            raise ValueError(f"BatchNorm in training needs more than one value for each channel, got shape {x.shape}")
        mean, variance = ops.batch_statistics(x)
        out = ops.batch_norm(x, self.weight, self.bias, mean, variance, self.epsilon, from_batch=True)
        self._follow(self.running_mean, mean)
        self._follow(self.running_var, variance * mean.dtype.type(count / (count - 1)))
        self.num_batches_tracked.add_(1)
        return out

    def _follow(self, running: Tensor, new: np.ndarray[Any, Any]) -> None:
        kind = running.dtype.type
        running.assign(running._array * kind(1 - self.momentum) + new * kind(self.momentum))


class LayerNorm(Module):
    """Normalize the last axes of each sample.

    Parameters
    ----------
    features
        Lengths of these axes, or the length of the last one.
    epsilon
        Added to the variance.
    affine
        Whether there are a weight and a bias, shape ``features``.
    dtype
        float32 or float64.
    """

    def __init__(
        self, features: int | Sequence[int], epsilon: float = 1e-5, affine: bool = True, dtype: Any = np.float32
    ) -> None:
        super().__init__()
        self.features = (features,) if isinstance(features, int) else tuple(features)
        self.epsilon = epsilon
        self.register_parameter("weight", init.full(self.features, 1, dtype) if affine else None)
        self.register_parameter("bias", init.full(self.features, 0, dtype) if affine else None)

    def forward(self, x: Any) -> Tensor:
        """Map ``(..., *features)`` to the same shape."""
        return ops.layer_norm(x, self.weight, self.bias, self.epsilon, len(self.features))

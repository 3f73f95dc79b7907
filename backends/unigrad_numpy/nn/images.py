"""Layers on images ``(batch, channels, height, width)``."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy import ops
from unigrad_numpy.nn import init
from unigrad_numpy.nn.module import Module
from unigrad_numpy.ops.convolution import Pair, pair
from unigrad_numpy.tensor import Tensor

__all__ = ["AvgPool2d", "Conv2d", "ConvTranspose2d", "Flatten", "MaxPool2d"]


class Conv2d(Module):
    """Convolution.

    Parameters
    ----------
    inputs, outputs
        Numbers of channels; the weight has shape ``(outputs, inputs, *size)``.
    size
        Kernel in pixels.
    stride, padding, dilation
        As of :func:`unigrad_numpy.ops.conv2d`.
    bias
        Whether there is a bias, shape ``(outputs,)``.
    dtype
        float32 or float64.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        bias: bool = True,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation = stride, padding, dilation
        shape = (outputs, inputs, *pair(size))
        fan_in = int(np.prod(shape[1:]))
        self.weight = init.fan_in_uniform(shape, fan_in, dtype)
        self.register_parameter("bias", init.fan_in_uniform((outputs,), fan_in, dtype) if bias else None)

    def forward(self, x: Any) -> Tensor:
        """Map ``(batch, inputs, h, w)`` to ``(batch, outputs, h', w')``."""
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)


class ConvTranspose2d(Module):
    """Transposed convolution.

    Parameters
    ----------
    inputs, outputs
        Numbers of channels; the weight has shape ``(inputs, outputs, *size)``.
    size
        Kernel in pixels.
    stride, padding, output_padding
        As of :func:`unigrad_numpy.ops.conv_transpose2d`.
    bias
        Whether there is a bias, shape ``(outputs,)``.
    dtype
        float32 or float64.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        bias: bool = True,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        shape = (inputs, outputs, *pair(size))
        fan_in = int(np.prod(shape[1:]))
        self.weight = init.fan_in_uniform(shape, fan_in, dtype)
        self.register_parameter("bias", init.fan_in_uniform((outputs,), fan_in, dtype) if bias else None)

    def forward(self, x: Any) -> Tensor:
        """Map ``(batch, inputs, h, w)`` to ``(batch, outputs, h', w')``."""
        return ops.conv_transpose2d(x, self.weight, self.bias, self.stride, self.padding, self.output_padding)


class MaxPool2d(Module):
    """Largest element of each window; settings as of :func:`unigrad_numpy.ops.max_pool2d`."""

    def __init__(self, size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        super().__init__()
        self.size, self.stride, self.padding = size, stride, padding

    def forward(self, x: Any) -> Tensor:
        """Map ``(batch, channels, h, w)`` to ``(batch, channels, h', w')``."""
        return ops.max_pool2d(x, self.size, self.stride, self.padding)


class AvgPool2d(Module):
    """Mean of each window; settings as of :func:`unigrad_numpy.ops.avg_pool2d`."""

    def __init__(self, size: Pair, stride: Pair | None = None) -> None:
        super().__init__()
        self.size, self.stride = size, stride

    def forward(self, x: Any) -> Tensor:
        """Map ``(batch, channels, h, w)`` to ``(batch, channels, h', w')``."""
        return ops.avg_pool2d(x, self.size, self.stride)


class Flatten(Module):
    """Join all axes but the first."""

    def forward(self, x: Any) -> Tensor:
        """Map ``(batch, ...)`` to ``(batch, features)``."""
        return ops.flatten(x)

"""Modules: how parameters are held, and the usual layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from toygrad import functions, randomness
from toygrad.graph import state
from toygrad.tensor import Buffer, Parameter, Tensor, record


class Module:
    """A model: parameters, buffers and modules are attributes; subclasses define ``forward``."""

    training = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        for hook in state.call_hooks:
            hook(self)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; for subclasses to define."""
        raise NotImplementedError

    def modules(self, path: str = "", above: tuple[Module, ...] = ()) -> Iterator[tuple[str, Module]]:
        """Yield the path of every place in which a module stands, with that module; this one first."""
        yield path, self
        for key, value in list(vars(self).items()):
            if isinstance(value, Module) and not any(value is one for one in (*above, self)):
                yield from value.modules(f"{path}.{key}" if path else key, (*above, self))


class Function(Module):
    """A layer that is a function of its input."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


class Chain(Module):
    """Modules one after the other; they are the attributes ``0``, ``1`` and so on."""

    def __init__(self, *modules: Module) -> None:
        vars(self).update({str(place): module for place, module in enumerate(modules)})

    def forward(self, x: Any) -> Any:
        """Give the output of each to the next."""
        for module in [value for value in vars(self).values() if isinstance(value, Module)]:
            x = module(x)
        return x


class Dense(Module):
    """Weighted sums: ``x @ weight.T + bias``; ``weight`` has the shape ``(outputs, inputs)``."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        self.weight = Parameter(weight)
        if bias is not None:
            self.bias = Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of shape ``(..., outputs)``."""
        y = functions.matmul(x, functions.transpose(self.weight, (1, 0)))
        return y + self.bias if hasattr(self, "bias") else y


class Dropout(Module):
    """Dropout while training."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return randomness.dropout(x, self.rate) if self.training else x


class Embedding(Module):
    """Rows of a table; one of them may be left out of training."""

    def __init__(self, weight: Any, left_out: int | None = None) -> None:
        self.weight = Parameter(weight)
        self.left_out = left_out

    def forward(self, places: Tensor) -> Tensor:
        """Return a tensor of shape ``(*places.shape, width)``."""
        return functions.pick(self.weight, places, self.left_out)


class BatchNorm(Module):
    """Normalization of each channel, which is axis 1, over all others.

    While training by the statistics of the batch, which are blended into the running ones with the weight ``momentum`` (the
    variance as an unbiased estimate); else by the running ones.
    """

    def __init__(self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5, affine: bool = True) -> None:
        self.momentum, self.epsilon = momentum, epsilon
        if affine:
            self.weight = Parameter(np.ones(channels, np.float32))
            self.bias = Parameter(np.zeros(channels, np.float32))
        self.running_mean = Buffer(np.zeros(channels, np.float32))
        self.running_var = Buffer(np.ones(channels, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        shape = (1, -1, *(1,) * (len(x.shape) - 2))
        if self.training:
            axes = (0, *range(2, len(x.shape)))
            centre = functions.mean(x, axes, keep=True)
            apart = x - centre
            spread = functions.mean(apart * apart, axes, keep=True)
            self._follow(centre.data.ravel(), spread.data.ravel(), x.data.size // x.shape[1])
        else:
            apart = x - functions.reshape(self.running_mean, shape)
            spread = functions.reshape(self.running_var, shape)
        y = apart / functions.sqrt(spread + self.epsilon)
        if hasattr(self, "weight"):
            y = y * functions.reshape(self.weight, shape) + functions.reshape(self.bias, shape)
        return y

    def _follow(self, centre: Any, spread: Any, count: int) -> None:
        if count < 2:
            raise ValueError("the variance of a channel needs more than one value")
        share = self.momentum
        self.running_mean.write((1 - share) * self.running_mean.data + share * centre)
        self.running_var.write((1 - share) * self.running_var.data + share * (count / (count - 1)) * spread)


class LayerNorm(Module):
    """Normalization over the last axis."""

    def __init__(self, features: int, epsilon: float = 1e-5) -> None:
        self.weight = Parameter(np.ones(features, np.float32))
        self.bias = Parameter(np.zeros(features, np.float32))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        apart = x - functions.mean(x, -1, keep=True)
        spread = functions.mean(apart * apart, -1, keep=True)
        return apart / functions.sqrt(spread + self.epsilon) * self.weight + self.bias


def _cut(x: Any, kernel: tuple[int, int], stride: int) -> Any:
    """Cut an array into windows: ``(batch, channels, *kernel, rows, columns)``."""
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=(2, 3))[:, :, ::stride, ::stride]
    return windows.transpose(0, 1, 4, 5, 2, 3)


def _lay(windows: Any, shape: tuple[int, int], stride: int) -> Any:
    """Add windows up where they lie in an array whose last two axes have this shape: the transposed map of ``_cut``."""
    batch, channels, height, width, rows, columns = windows.shape
    whole = np.zeros((batch, channels, *shape), windows.dtype)
    for i in range(height):
        for j in range(width):
            whole[:, :, i : i + stride * rows : stride, j : j + stride * columns : stride] += windows[:, :, i, j]
    return whole


def windows_of(x: Tensor, kernel: tuple[int, int], stride: int) -> Tensor:
    """Return the windows of images, ``(batch, channels * kernel, places)``, with the number of rows and columns."""
    shape = x.shape[2:]
    cut = _cut(x.data, kernel, stride)

    def pull(c: Any) -> tuple[Any]:
        return (_lay(c.reshape(cut_shape), shape, stride),)

    cut_shape = cut.shape
    return record(np.ascontiguousarray(cut), (x,), pull)


class Conv2d(Module):
    """Convolution of images; ``weight`` has the shape ``(out, in, height, width)``."""

    def __init__(self, weight: Any, bias: Any = None, stride: int = 1, padding: int = 0) -> None:
        self.weight = Parameter(weight)
        if bias is not None:
            self.bias = Parameter(bias)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        """Return images ``(batch, out, rows, columns)``."""
        count, channels, height, width = self.weight.shape
        cut = windows_of(functions.pad(x, self.padding), (height, width), self.stride)
        rows, columns = cut.shape[-2:]
        flat = functions.reshape(cut, (x.shape[0], channels * height * width, rows * columns))
        y = functions.matmul(functions.reshape(self.weight, (count, -1)), flat)
        return _with_bias(self, functions.reshape(y, (x.shape[0], count, rows, columns)))


class ConvTranspose2d(Module):
    """Transposed convolution: every element lays down a scaled kernel; ``weight`` has the shape ``(in, out, height, width)``."""

    def __init__(self, weight: Any, bias: Any = None, stride: int = 1, padding: int = 0) -> None:
        self.weight = Parameter(weight)
        if bias is not None:
            self.bias = Parameter(bias)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        """Return images ``(batch, out, rows, columns)``."""
        channels, count, height, width = self.weight.shape
        batch, _, rows, columns = x.shape
        matrix = functions.transpose(functions.reshape(self.weight, (channels, -1)), (1, 0))
        kernels = functions.matmul(matrix, functions.reshape(x, (batch, channels, rows * columns)))
        windows = functions.reshape(kernels, (batch, count, height, width, rows, columns))
        shape = ((rows - 1) * self.stride + height, (columns - 1) * self.stride + width)
        stride = self.stride
        y = record(_lay(windows.data, shape, stride), (windows,), lambda c: (_cut(c, (height, width), stride),))
        cut = self.padding
        return _with_bias(self, y[:, :, cut : shape[0] - cut, cut : shape[1] - cut] if cut else y)


def _with_bias(layer: Any, y: Tensor) -> Tensor:
    return y + functions.reshape(layer.bias, (-1, 1, 1)) if hasattr(layer, "bias") else y


class MaxPool2d(Module):
    """Largest element of each window; windows lie side by side, and what fills none is cut off."""

    def __init__(self, size: int) -> None:
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Return images ``(batch, channels, rows, columns)``."""
        batch, channels, height, width = x.shape
        rows, columns, size = height // self.size, width // self.size, self.size
        cut = windows_of(x[:, :, : rows * size, : columns * size], (size, size), size)
        return functions.largest(functions.reshape(cut, (batch, channels, size * size, rows, columns)), 2)

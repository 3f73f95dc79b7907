"""The suite's native layers: torch's own, with exactly the given values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from unigrad.samples import NoSampleError
from unigrad_torch.arrays import from_numpy


class BatchNorm(_BatchNorm):
    """Batch normalization for inputs of any number of axes, the channels on axis 1."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


class LSTM(nn.LSTM):
    """Long short-term memory that returns its outputs without the last state."""

    def forward(self, x: Tensor) -> Tensor:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        return super().forward(x)[0]


class GRU(nn.GRU):
    """Gated recurrent unit that returns its outputs without the last state."""

    def forward(self, x: Tensor) -> Tensor:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        return super().forward(x)[0]


class Attention(nn.MultiheadAttention):
    """Multi-head attention of an input with itself; batch first."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend over ``x`` of shape ``(batch, steps, features)``."""
        return super().forward(x, x, x, need_weights=False)[0]


class Model(nn.Module):
    """Named members and a forward that is a function of the model and its arguments."""

    def __init__(
        self,
        forward: Callable[..., Any],
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        layers: Mapping[str, Any],
        generators: Mapping[str, int],
    ) -> None:
        super().__init__()
        self._forward = forward
        for name, value in parameters.items():
            setattr(self, name, value if isinstance(value, nn.Parameter) else nn.Parameter(from_numpy(value)))
        for name, value in buffers.items():
            self.register_buffer(name, from_numpy(value))
        for name, layer in layers.items():
            setattr(self, name, layer)
        for name, seed in generators.items():
            setattr(self, name, torch.Generator().manual_seed(seed))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._forward(self, *args, **kwargs)


def _fill(parameter: Tensor, value: Any) -> nn.Parameter:
    value = from_numpy(value)
    if value.shape != parameter.shape:
        raise ValueError(f"a sample layer needs the shape {tuple(parameter.shape)}, not {tuple(value.shape)}")
    return nn.Parameter(value)


def _with_values(layer: nn.Module, weight: Any, bias: Any) -> nn.Module:
    layer.weight = _fill(layer.weight, weight)
    if bias is not None:
        layer.bias = _fill(layer.bias, bias)
    return layer


def _dense(weight: Any, bias: Any = None) -> nn.Module:
    outputs, inputs = weight.shape
    return _with_values(nn.Linear(inputs, outputs, bias=bias is not None), weight, bias)


def _conv2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> nn.Module:
    outputs, inputs, *kernel = weight.shape
    made = nn.Conv2d(inputs, outputs, tuple(kernel), stride, padding, bias=bias is not None)
    return _with_values(made, weight, bias)


def _conv_transpose2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> nn.Module:
    inputs, outputs, *kernel = weight.shape
    made = nn.ConvTranspose2d(inputs, outputs, tuple(kernel), stride, padding, bias=bias is not None)
    return _with_values(made, weight, bias)


def _batch_norm(channels: int, momentum: float = 0.1, epsilon: float = 1e-5, affine: bool = True) -> nn.Module:
    return BatchNorm(channels, epsilon, momentum, affine)


def _embedding(weight: Any, padding_index: int | None = None) -> nn.Module:
    rows, width = weight.shape
    made = nn.Embedding(rows, width, padding_idx=padding_index)
    made.weight = _fill(made.weight, weight)
    return made


def _recurrent(kind: type[nn.RNNBase]) -> Callable[..., nn.Module]:
    def make(input_weight: Any, hidden_weight: Any, input_bias: Any = None, hidden_bias: Any = None) -> nn.Module:
        values = {"weight_ih_l0": input_weight, "weight_hh_l0": hidden_weight}
        if input_bias is not None:
            values |= {"bias_ih_l0": input_bias, "bias_hh_l0": hidden_bias}
        made = kind(input_weight.shape[1], hidden_weight.shape[1], bias=input_bias is not None, batch_first=True)
        for name, value in values.items():
            setattr(made, name, _fill(getattr(made, name), value))
        return made

    return make


def _attention(features: int, heads: int, seed: int) -> nn.Module:
    made = Attention(features, heads, batch_first=True)
    numbers = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(from_numpy(numbers.standard_normal(parameter.shape) / np.sqrt(features)))
    return made


def _sequential(layers: Sequence[Any]) -> nn.Module:
    return nn.Sequential(*layers)


_MAKERS: Mapping[str, Callable[..., nn.Module]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": lambda size: nn.MaxPool2d(size),
    "batch_norm": _batch_norm,
    "layer_norm": lambda features, epsilon=1e-5: nn.LayerNorm(features, epsilon),
    "dropout": lambda rate: nn.Dropout(rate),
    "embedding": _embedding,
    "flatten": nn.Flatten,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "hardswish": nn.Hardswish,
    "lazy_dense": lambda outputs, bias=True: nn.LazyLinear(outputs, bias),
    "lstm": _recurrent(LSTM),
    "gru": _recurrent(GRU),
    "attention": _attention,
    "sequential": _sequential,
}


def make_layer(kind: str, config: Mapping[str, Any]) -> nn.Module:
    """Return a layer of a kind; ``NoSampleError`` if there is none."""
    if kind not in _MAKERS:
        raise NoSampleError(f"torch has no sample layer {kind!r}")
    return _MAKERS[kind](**config)

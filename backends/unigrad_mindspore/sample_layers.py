"""The suite's native layers: MindSpore's own, with exactly the given values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from unigrad.errors import UnsupportedError
from unigrad.samples import NoSampleError
from unigrad_mindspore.arrays import dtype, from_numpy
from unigrad_mindspore.sample_operations import Operations
from unigrad_mindspore.sample_wide import convolve, convolve_transposed


class Conv2d(nn.Conv2d):
    """Convolution that has float64 too."""

    def construct(self, x: Any) -> Any:
        """Convolve ``x``."""
        if dtype(x) != "float64":
            return super().construct(x)
        return convolve(x, self.weight, self.bias if self.has_bias else None, self.stride, self.sides)


class Conv2dTranspose(nn.Conv2dTranspose):
    """Transposed convolution that has float64 too."""

    def construct(self, x: Any) -> Any:
        """Convolve ``x``."""
        if dtype(x) != "float64":
            return super().construct(x)
        return convolve_transposed(x, self.weight, self.bias if self.has_bias else None, self.stride, self.sides)


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization for inputs of any number of axes, the channels on axis 1."""

    def construct(self, x: Any) -> Any:
        """Normalize ``x``."""
        shape = x.shape
        return ops.reshape(super().construct(ops.reshape(x, (*shape[:2], -1, 1))), shape)


class Embedding(nn.Embedding):
    """Embedding whose padding row gets a gradient of zero (MindSpore's own fills that row once, no more), also of no rows."""

    def __init__(self, rows: int, width: int, padding_index: int | None) -> None:
        super().__init__(rows, width, padding_idx=padding_index)
        self.padding = None if padding_index is None else Tensor(np.arange(rows)[:, None] == padding_index)

    def construct(self, ids: Any) -> Any:
        """Return the rows at ``ids``."""
        table = self.embedding_table
        if self.padding is not None:
            table = ops.where(self.padding, ops.stop_gradient(table), table)
        return Operations.take(table, ids)


class LSTM(nn.LSTM):
    """Long short-term memory that returns its outputs without the last state."""

    def construct(self, x: Any) -> Any:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        return self._wide(x) if dtype(x) == "float64" else super().construct(x)[0]

    def _wide(self, x: Any) -> Any:
        """Run in plain operations: the kernel of the gradient gives no numbers in float64."""
        weights = {parameter.name.rpartition(".")[2]: parameter for parameter in self.get_parameters()}
        inputs, hiddens = weights["weight_ih_l0"], weights["weight_hh_l0"]
        bias = sum(
            (weights[name] for name in ("bias_ih_l0", "bias_hh_l0") if name in weights), start=Tensor(np.zeros(1))
        )
        hidden = cell = Tensor(np.zeros((x.shape[0], hiddens.shape[1])))
        outputs = []
        for step in range(x.shape[1]):
            gates = ops.matmul(x[:, step], inputs.T) + ops.matmul(hidden, hiddens.T) + bias
            enter, forget, new, leave = ops.split(gates, hiddens.shape[1], 1)
            cell = ops.sigmoid(forget) * cell + ops.sigmoid(enter) * ops.tanh(new)
            hidden = ops.sigmoid(leave) * ops.tanh(cell)
            outputs.append(hidden)
        return ops.stack(outputs, 1)


class GRU(nn.GRU):
    """Gated recurrent unit that returns its outputs without the last state."""

    def construct(self, x: Any) -> Any:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        return super().construct(x)[0]


class Attention(nn.MultiheadAttention):
    """Multi-head attention of an input with itself; batch first."""

    def __call__(self, x: Any) -> Any:
        """Attend over ``x``."""
        self.k_is_v = self.q_is_k = True
        return nn.Cell.__call__(self, x)

    def construct(self, x: Any) -> Any:
        """Attend over ``x`` of shape ``(batch, steps, features)``."""
        return super().construct(x, x, x, need_weights=False)[0]


class Model(nn.Cell):
    """Named members and a forward that is a function of the Cell and its arguments."""

    def __init__(
        self,
        forward: Callable[..., Any],
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        layers: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._forward = forward
        for name, value in parameters.items():
            made = value if isinstance(value, Parameter) else Parameter(from_numpy(value), name=name)
            self.insert_param_to_cell(name, made)
        for name, value in buffers.items():
            self.insert_param_to_cell(name, Parameter(from_numpy(value), name=name, requires_grad=False))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._forward(self, *args, **kwargs)


def _with_values(layer: nn.Cell, **values: Any) -> nn.Cell:
    for name, value in values.items():
        if value is None:
            continue
        old = getattr(layer, name)
        made = from_numpy(value)
        if made.shape != old.shape:
            raise ValueError(f"a sample layer needs the shape {tuple(old.shape)}, not {tuple(made.shape)}")
        setattr(layer, name, Parameter(made, name=name))
    return layer


def _dense(weight: Any, bias: Any = None) -> nn.Cell:
    outputs, inputs = np.shape(weight)
    return _with_values(nn.Dense(inputs, outputs, has_bias=bias is not None), weight=weight, bias=bias)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _conv2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> nn.Cell:
    outputs, inputs, *kernel = np.shape(weight)
    settings = {"stride": _pair(stride), "pad_mode": "pad", "padding": _sides(padding), "has_bias": bias is not None}
    made = Conv2d(inputs, outputs, tuple(kernel), **settings)
    made.sides = _pair(padding)
    return _with_values(made, weight=weight, bias=bias)


def _conv_transpose2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> nn.Cell:
    inputs, outputs, *kernel = np.shape(weight)
    settings = {"stride": _pair(stride), "pad_mode": "pad", "padding": _sides(padding), "has_bias": bias is not None}
    made = Conv2dTranspose(inputs, outputs, tuple(kernel), **settings)
    made.sides = _pair(padding)
    return _with_values(made, weight=weight, bias=bias)


def _sides(padding: Any) -> tuple[int, int, int, int]:
    """Return the padding of top, bottom, left and right."""
    vertical, horizontal = _pair(padding)
    return vertical, vertical, horizontal, horizontal


def _batch_norm(channels: int, momentum: float = 0.1, epsilon: float = 1e-5, affine: bool = True) -> nn.Cell:
    return BatchNorm(channels, eps=epsilon, momentum=1.0 - momentum, affine=affine)


def _embedding(weight: Any, padding_index: int | None = None) -> nn.Cell:
    rows, width = np.shape(weight)
    return _with_values(Embedding(rows, width, padding_index), embedding_table=weight)


def _recurrent(kind: type[nn.Cell]) -> Callable[..., nn.Cell]:
    def make(input_weight: Any, hidden_weight: Any, input_bias: Any = None, hidden_bias: Any = None) -> nn.Cell:
        made = kind(
            np.shape(input_weight)[1], np.shape(hidden_weight)[1], has_bias=input_bias is not None, batch_first=True
        )
        values = {"weight_ih_l0": input_weight, "weight_hh_l0": hidden_weight}
        if input_bias is not None:
            values |= {"bias_ih_l0": input_bias, "bias_hh_l0": hidden_bias}
        for parameter in made.get_parameters():
            made_of = from_numpy(values[parameter.name.rpartition(".")[2]])
            parameter.set_dtype(made_of.dtype)
            parameter.set_data(made_of)
        return made

    return make


def _attention(features: int, heads: int, seed: int) -> nn.Cell:
    made = Attention(features, heads, batch_first=True)
    numbers = np.random.default_rng(seed)
    for parameter in made.get_parameters():
        values = numbers.standard_normal(parameter.shape) / np.sqrt(features)
        parameter.set_data(from_numpy(values.astype(np.float32)))
    return made


def _lazy_dense(outputs: int, bias: bool = True) -> nn.Cell:
    raise UnsupportedError("backend 'mindspore' has no layers whose parameters are created by the first call")


_MAKERS: Mapping[str, Callable[..., nn.Cell]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": lambda size: nn.MaxPool2d(size, size),
    "batch_norm": _batch_norm,
    "layer_norm": lambda features, epsilon=1e-5: nn.LayerNorm((features,), epsilon=epsilon),
    "dropout": lambda rate: nn.Dropout(p=rate),
    "embedding": _embedding,
    "flatten": nn.Flatten,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": lambda: nn.GELU(approximate=False),
    "hardswish": nn.HSwish,
    "lazy_dense": _lazy_dense,
    "lstm": _recurrent(LSTM),
    "gru": _recurrent(GRU),
    "attention": _attention,
    "sequential": lambda layers: nn.SequentialCell(*layers),
}


def make_layer(kind: str, config: Mapping[str, Any]) -> nn.Cell:
    """Return a layer of a kind; ``NoSampleError`` if there is none."""
    if kind not in _MAKERS:
        raise NoSampleError(f"mindspore has no sample layer {kind!r}")
    return _MAKERS[kind](**config)

"""The suite's native layers: Paddle's own, with exactly the given values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional

from unigrad.samples import NoSampleError
from unigrad_paddle.arrays import from_numpy
from unigrad_paddle.framework import Parameter


class Dense(nn.Linear):
    """``x @ weight.T + bias``: the weight in the reference layout, so that the suite compares the same arrays on every backend."""

    def forward(self, input: Any) -> Any:
        """Apply the layer."""
        product = paddle.matmul(input, self.weight, transpose_y=True)
        return product if self.bias is None else product + self.bias


class LazyDense(Dense):
    """A dense layer that takes its number of inputs from its first call, by the way that Paddle has for it."""

    def __init__(self, outputs: int, bias: bool) -> None:
        nn.Layer.__init__(self)
        self.outputs = outputs
        self.with_bias = bias

    def _build_once(self, input: Any) -> None:
        self.weight = self.create_parameter([self.outputs, input.shape[-1]])
        self.bias = self.create_parameter([self.outputs], is_bias=True) if self.with_bias else None


class BatchNorm(nn.BatchNorm1D):
    """Batch normalization for inputs of any number of axes, the channels on axis 1."""

    def forward(self, input: Any) -> Any:
        """Normalize."""
        return functional.batch_norm(
            input, self._mean, self._variance, self.weight, self.bias, self.training, self._momentum, self._epsilon
        )


class LSTM(nn.LSTM):
    """Long short-term memory that returns its outputs without the last state."""

    def forward(self, x: Any) -> Any:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        return super().forward(x)[0]


class GRU(nn.GRU):
    """Gated recurrent unit that returns its outputs without the last state."""

    def forward(self, x: Any) -> Any:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        return super().forward(x)[0]


class Attention(nn.Layer):
    """Multi-head attention of an input with itself, its weights packed as in the reference layout."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = self.create_parameter([3 * features, features])
        self.in_proj_bias = self.create_parameter([3 * features])
        self.out_proj = Dense(features, features)

    def forward(self, x: Any) -> Any:
        """Attend over ``x`` of shape ``(batch, steps, features)``."""
        batch, steps, features = x.shape
        packed = paddle.matmul(x, self.in_proj_weight, transpose_y=True) + self.in_proj_bias
        split = packed.reshape([batch, steps, 3, self.heads, features // self.heads]).transpose([2, 0, 3, 1, 4])
        query, key, value = split[0], split[1], split[2]
        scores = paddle.matmul(query, key, transpose_y=True) * (features // self.heads) ** -0.5
        mixed = paddle.matmul(functional.softmax(scores), value).transpose([0, 2, 1, 3])
        return self.out_proj(mixed.reshape([batch, steps, features]))


class Embedding(nn.Embedding):
    """Embedding whose padding row is looked up as it is and gets no gradient; Paddle's own gives zeros for it."""

    def __init__(self, rows: int, width: int, padding_index: int | None) -> None:
        super().__init__(rows, width)
        self.padding_index = padding_index

    def forward(self, x: Any) -> Any:
        """Look up rows."""
        found = functional.embedding(x, self.weight)
        if self.padding_index is None:
            return found
        return paddle.where((x == self.padding_index).unsqueeze(-1), found.detach(), found)


class Model(nn.Layer):
    """Named members and a forward that is a function of the model and its arguments."""

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
            setattr(self, name, value if isinstance(value, Parameter) else make_parameter(value))
        for name, value in buffers.items():
            self.register_buffer(name, from_numpy(value))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._forward(self, *args, **kwargs)


def make_parameter(value: Any, dtype: str | None = None) -> Any:
    """Return a trainable parameter with a copy of the values."""
    made = from_numpy(value)
    if dtype is not None:
        made = made.astype(dtype)
    return Parameter.from_tensor(made, trainable=True, stop_gradient=False)


def _put(layer: Any, name: str, value: Any) -> None:
    made = make_parameter(value)
    held = getattr(layer, name)
    if made.shape != held.shape:
        raise ValueError(f"a sample layer needs the shape {tuple(held.shape)}, not {tuple(made.shape)}")
    setattr(layer, name, made)


def _with_values(layer: Any, weight: Any, bias: Any) -> Any:
    _put(layer, "weight", weight)
    if bias is not None:
        _put(layer, "bias", bias)
    return layer


def _dense(weight: Any, bias: Any = None) -> Any:
    outputs, inputs = weight.shape
    # both sizes exchanged, for the shape of the weight; the bias is put whole
    made = Dense(outputs, inputs, bias_attr=False)
    made.weight = make_parameter(weight)
    if bias is not None:
        made.bias = make_parameter(bias)
    return made


def _conv2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> Any:
    outputs, inputs, *kernel = weight.shape
    made = nn.Conv2D(inputs, outputs, kernel, stride, padding, bias_attr=None if bias is not None else False)
    return _with_values(made, weight, bias)


def _conv_transpose2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> Any:
    inputs, outputs, *kernel = weight.shape
    made = nn.Conv2DTranspose(inputs, outputs, kernel, stride, padding, bias_attr=None if bias is not None else False)
    return _with_values(made, weight, bias)


def _batch_norm(channels: int, momentum: float = 0.1, epsilon: float = 1e-5, affine: bool = True) -> Any:
    attribute = None if affine else False
    # Paddle's momentum is the weight of the old value
    return BatchNorm(channels, 1 - momentum, epsilon, weight_attr=attribute, bias_attr=attribute)


def _embedding(weight: Any, padding_index: int | None = None) -> Any:
    rows, width = weight.shape
    made = Embedding(rows, width, padding_index)
    _put(made, "weight", weight)
    return made


def _recurrent(kind: Any) -> Callable[..., Any]:
    def make(input_weight: Any, hidden_weight: Any, input_bias: Any = None, hidden_bias: Any = None) -> Any:
        values = {"weight_ih_l0": input_weight, "weight_hh_l0": hidden_weight}
        options: dict[str, Any] = {}
        if input_bias is None:
            options = {"bias_ih_attr": False, "bias_hh_attr": False}
        else:
            values |= {"bias_ih_l0": input_bias, "bias_hh_l0": hidden_bias}
        before = paddle.get_default_dtype()
        paddle.set_default_dtype(input_weight.dtype.name)  # such a layer can't be converted afterwards
        try:
            made = kind(input_weight.shape[1], hidden_weight.shape[1], **options)
        finally:
            paddle.set_default_dtype(before)
        for name, value in values.items():
            # written in place: the layer holds its weights in further places
            getattr(made, name).set_value(np.asarray(value))
        return made

    return make


def _attention(features: int, heads: int, seed: int) -> Any:
    made = Attention(features, heads)
    numbers = np.random.default_rng(seed)
    for parameter in made.parameters():
        parameter.set_value((numbers.standard_normal(parameter.shape) / np.sqrt(features)).astype("float32"))
    return made


def _sequential(layers: Sequence[Any]) -> Any:
    return nn.Sequential(*layers)


_MAKERS: Mapping[str, Callable[..., Any]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": lambda size: nn.MaxPool2D(size),
    "batch_norm": _batch_norm,
    "layer_norm": lambda features, epsilon=1e-5: nn.LayerNorm(features, epsilon),
    "dropout": lambda rate: nn.Dropout(rate),
    "embedding": _embedding,
    "flatten": nn.Flatten,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "hardswish": nn.Hardswish,
    "lazy_dense": lambda outputs, bias=True: LazyDense(outputs, bias),
    "lstm": _recurrent(LSTM),
    "gru": _recurrent(GRU),
    "attention": _attention,
    "sequential": _sequential,
}


def make_layer(kind: str, config: Mapping[str, Any]) -> Any:
    """Return a layer of a kind; ``NoSampleError`` if there is none."""
    if kind not in _MAKERS:
        raise NoSampleError(f"paddle has no layer {kind!r}: every layer creates its parameters when it is made")
    return _MAKERS[kind](**config)

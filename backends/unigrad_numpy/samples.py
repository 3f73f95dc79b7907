"""Test material of the suite. See ``unigrad.samples.Samples``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from unigrad.errors import UnsupportedError
from unigrad.samples import NoSampleError
from unigrad_numpy import nn, ops, optim
from unigrad_numpy.graph import base_of, vector_jacobian_product
from unigrad_numpy.graph import no_grad as no_grad
from unigrad_numpy.tensor import Parameter, Tensor

conventions = {"running_variance": "unbiased", "in_place": "no"}


class _Operations:
    exp = staticmethod(ops.exp)
    log = staticmethod(ops.log)
    sqrt = staticmethod(ops.sqrt)
    tanh = staticmethod(ops.tanh)
    sin = staticmethod(ops.sin)
    cos = staticmethod(ops.cos)
    sigmoid = staticmethod(ops.sigmoid)
    relu = staticmethod(ops.relu)
    relu6 = staticmethod(ops.relu6)
    gelu = staticmethod(ops.gelu)
    hardswish = staticmethod(ops.hardswish)
    absolute = staticmethod(ops.abs)
    round = staticmethod(ops.round)
    sign = staticmethod(ops.sign)
    softmax = staticmethod(ops.softmax)
    maximum = staticmethod(ops.maximum)
    norm = staticmethod(ops.norm)
    sum = staticmethod(ops.sum)
    mean = staticmethod(ops.mean)
    max = staticmethod(ops.max)
    argmax = staticmethod(ops.argmax)
    matmul = staticmethod(ops.matmul)
    reshape = staticmethod(ops.reshape)
    transpose = staticmethod(ops.transpose)
    index = staticmethod(ops.getitem)
    concat = staticmethod(ops.concat)
    split = staticmethod(ops.split)
    take = staticmethod(ops.take)
    where = staticmethod(ops.where)
    stop_gradient = staticmethod(ops.stop_gradient)
    cast = staticmethod(ops.cast)
    dropout = staticmethod(ops.dropout)
    normal = staticmethod(ops.normal)
    uniform = staticmethod(ops.uniform)
    cross_entropy = staticmethod(ops.cross_entropy)

    @staticmethod
    def minimum_value(x: Any, value: float) -> Any:
        return ops.clip(x, low=value)

    @staticmethod
    def set_item(x: Any, index: int, value: float) -> Any:
        return ops.where(np.arange(x.size).reshape(x.shape) == index, value, x)


operations = _Operations()


def tensor(array: Any, dtype: str | None = None) -> Tensor:
    """Return a tensor with a copy of the values."""
    if dtype == "bfloat16":
        raise UnsupportedError("backend 'numpy' has no bfloat16; NumPy itself has none")
    return Tensor(np.asarray(array), dtype=dtype)


def leaf(array: Any, dtype: str | None = None) -> Parameter:
    """Return a trainable leaf that belongs to no model."""
    if dtype in ("float16", "bfloat16"):
        raise UnsupportedError(f"backend 'numpy' does not support gradients of {dtype}; it does of: float32, float64")
    return Parameter(np.asarray(array), dtype=dtype)


class _Model(nn.Module):
    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self._run = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self, *args, **kwargs)


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> nn.Module:
    """Return a module with these members and ``forward(self, ...)``."""
    made = _Model(forward)
    for name, value in (parameters or {}).items():
        made.register_parameter(name, _parameter(value))
    for name, value in (buffers or {}).items():
        made.register_buffer(name, tensor(value))
    for name, value in (layers or {}).items():
        made.add_module(name, value)
    for name, seed in (generators or {}).items():
        setattr(made, name, generator(seed))
    return made


def _with_values(layer: nn.Module, **values: Any) -> nn.Module:
    """Replace parameters, dtype and all; None takes one away."""
    for name, value in values.items():
        layer.register_parameter(name, None if value is None else _parameter(value))
    return layer


def _parameter(value: Any) -> Parameter:
    """Return a native parameter as it is, to tie it, and anything else as a new one."""
    return value if isinstance(value, Parameter) else Parameter(np.asarray(value))


def _dense(weight: Any, bias: Any = None) -> nn.Module:
    outputs, inputs = np.shape(weight)
    return _with_values(nn.Dense(inputs, outputs), weight=weight, bias=bias)


def _conv2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> nn.Module:
    outputs, inputs, *size = np.shape(weight)
    return _with_values(nn.Conv2d(inputs, outputs, tuple(size), stride, padding), weight=weight, bias=bias)


def _conv_transpose2d(weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> nn.Module:
    inputs, outputs, *size = np.shape(weight)
    return _with_values(nn.ConvTranspose2d(inputs, outputs, tuple(size), stride, padding), weight=weight, bias=bias)


def _embedding(weight: Any, padding_index: int | None = None) -> nn.Module:
    return _with_values(nn.Embedding(*np.shape(weight), padding_index=padding_index), weight=weight)


class _LSTM(nn.LSTM):
    def forward(self, x: Any) -> Any:
        return super().forward(x)[0]


class _GRU(nn.GRU):
    def forward(self, x: Any) -> Any:
        return super().forward(x)[0]


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Callable[..., nn.Module]:
    def build(input_weight: Any, hidden_weight: Any, input_bias: Any = None, hidden_bias: Any = None) -> nn.Module:
        layer = kind(np.shape(input_weight)[1], np.shape(hidden_weight)[1])
        return _with_values(
            layer, weight_ih_l0=input_weight, weight_hh_l0=hidden_weight, bias_ih_l0=input_bias, bias_hh_l0=hidden_bias
        )

    return build


def _attention(features: int, heads: int, seed: int) -> nn.Module:
    layer = nn.MultiheadAttention(features, heads)
    numbers = np.random.default_rng(seed)
    for parameter in layer.parameters():
        parameter.assign((numbers.standard_normal(parameter.shape) / np.sqrt(features)).astype(np.float32))
    return layer


_LAYERS: Mapping[str, Callable[..., nn.Module]] = {
    "dense": _dense,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": nn.MaxPool2d,
    "batch_norm": nn.BatchNorm,
    "layer_norm": nn.LayerNorm,
    "dropout": nn.Dropout,
    "embedding": _embedding,
    "flatten": nn.Flatten,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "hardswish": nn.Hardswish,
    "lazy_dense": nn.LazyDense,
    "lstm": _recurrent(_LSTM),
    "gru": _recurrent(_GRU),
    "attention": _attention,
    "sequential": lambda layers: nn.Sequential(*layers),
}


def layer(kind: str, **config: Any) -> nn.Module:
    """Return a layer of this kind with exactly these values."""
    if kind not in _LAYERS:
        raise NoSampleError(kind)
    return _LAYERS[kind](**config)


def set_buffer(model: Any, name: str, value: Any) -> None:
    """Write into a buffer from inside a forward."""
    getattr(model, name).assign(value.detach())


def own_normal(generator: Any, shape: Sequence[int]) -> Tensor:
    """Draw standard normal noise from a generator."""
    return ops.normal(shape, source=generator)


def generator(seed: int) -> np.random.Generator:
    """Return a generator that belongs to no model."""
    return np.random.default_rng(seed)


def mixed_precision(dtype: str) -> AbstractContextManager[Any]:
    """Raise; the backend has no mixed precision."""
    raise UnsupportedError(f"backend 'numpy' has no mixed precision, so none in {dtype}")


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the gradient of a scalar function at ``x``."""
    point = Tensor(x, requires_grad=True)
    loss = function(point)
    (gradient,) = vector_jacobian_product([loss], [None], [point])
    return Tensor(np.zeros(x.shape, x.dtype) if gradient is None else gradient)


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of stochastic gradient descent."""
    return lambda parameters: optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of AdamW."""
    return lambda parameters: optim.AdamW(parameters, lr=rate, weight_decay=decay)


def change(parameter: Any, array: Any) -> None:
    """Write new values as the optimizers do."""
    parameter.assign(np.asarray(array, parameter.dtype))


def change_hidden(parameter: Any, array: Any) -> None:
    """Write new values past the version: NumPy lets a read-only view be made writeable again."""
    view = parameter.data
    view.flags.writeable = True
    view[...] = array


def storage_alive(tensor: Any) -> Callable[[], bool]:
    """Return a function that tells whether the tensor's memory is alive."""
    reference = weakref.ref(base_of(tensor._array))
    return lambda: reference() is not None


def shared_tensor(array: Any) -> Any:
    """Raise; tensors copy what they are made of."""
    raise NoSampleError("tensor sharing memory with an array")

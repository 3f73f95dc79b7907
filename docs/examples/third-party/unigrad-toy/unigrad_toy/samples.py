"""The suite's layers and operations in toygrad. See ``unigrad.samples``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import toygrad
from toygrad import Buffer, Module, Parameter, Tensor, functions, layers, optimizers, randomness, sequences

from unigrad.errors import UnsupportedError
from unigrad.samples import NoSampleError


class Operations:
    """Operations of toygrad under the names of the suite."""

    exp = staticmethod(functions.exp)
    log = staticmethod(functions.log)
    sqrt = staticmethod(functions.sqrt)
    tanh = staticmethod(functions.tanh)
    sin = staticmethod(functions.sin)
    cos = staticmethod(functions.cos)
    sigmoid = staticmethod(functions.sigmoid)
    relu = staticmethod(functions.relu)
    relu6 = staticmethod(functions.relu6)
    gelu = staticmethod(functions.gelu)
    hardswish = staticmethod(functions.hardswish)
    absolute = staticmethod(functions.absolute)
    round = staticmethod(functions.rounded)
    sign = staticmethod(functions.sign)
    softmax = staticmethod(functions.softmax)
    maximum = staticmethod(functions.maximum)
    norm = staticmethod(functions.norm)
    sum = staticmethod(functions.total)
    mean = staticmethod(functions.mean)
    max = staticmethod(functions.largest)
    argmax = staticmethod(functions.place_of_largest)
    matmul = staticmethod(functions.matmul)
    reshape = staticmethod(functions.reshape)
    transpose = staticmethod(functions.transpose)
    index = staticmethod(functions.pick)
    take = staticmethod(functions.pick)
    concat = staticmethod(functions.join)
    split = staticmethod(functions.split)
    where = staticmethod(functions.where)
    stop_gradient = staticmethod(functions.detach)
    cast = staticmethod(functions.cast)
    dropout = staticmethod(randomness.dropout)
    normal = staticmethod(randomness.normal)
    uniform = staticmethod(randomness.uniform)
    cross_entropy = staticmethod(functions.cross_entropy)

    @staticmethod
    def minimum_value(x: Tensor, value: float) -> Tensor:
        """Limit from below."""
        return functions.clip(x, low=value)

    @staticmethod
    def set_item(x: Tensor, index: int, value: float) -> Tensor:
        """Return a copy with another value for one element; writing in place is never recorded."""
        there = np.zeros(x.shape, bool)
        there[index] = True
        return functions.where(Tensor(there), value, x)


operations = Operations()
conventions: Mapping[str, str] = {"running_variance": "unbiased", "in_place": "no"}


class Model(Module):
    """A module whose forward is a given function of itself and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        return self._function(self, *args, **kwargs)


def tensor(array: Any, dtype: str | None = None) -> Any:
    if dtype == "bfloat16":
        raise UnsupportedError("backend 'toy' has no bfloat16")
    return Tensor(array, dtype=dtype)


def leaf(array: Any, dtype: str | None = None) -> Any:
    if dtype not in (None, "float32", "float64"):
        raise UnsupportedError(f"backend 'toy' does not support gradients of {dtype}")
    return Parameter(array, dtype)


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> Any:
    if generators:
        raise UnsupportedError("backend 'toy' has no generators but its global one")
    made = Model(forward)
    for name, value in (parameters or {}).items():
        setattr(made, name, value if isinstance(value, Parameter) else Parameter(value))
    for name, value in (buffers or {}).items():
        setattr(made, name, Buffer(value))
    for name, value in (layers or {}).items():
        setattr(made, name, value)
    return made


def _attention(features: int, heads: int, seed: int) -> Module:
    numbers = np.random.default_rng(seed)
    shapes = (3 * features, features), (3 * features,), (features, features), (features,)
    values = [(numbers.standard_normal(shape) / np.sqrt(features)).astype("float32") for shape in shapes]
    return sequences.Attention(heads, *values)


def _no_lazy_layers(**config: Any) -> Module:
    raise UnsupportedError("backend 'toy' creates every parameter at once")


LAYERS: Mapping[str, Callable[..., Module]] = {
    "dense": layers.Dense,
    "conv2d": layers.Conv2d,
    "conv_transpose2d": layers.ConvTranspose2d,
    "max_pool2d": layers.MaxPool2d,
    "batch_norm": layers.BatchNorm,
    "layer_norm": layers.LayerNorm,
    "dropout": layers.Dropout,
    "embedding": lambda weight, padding_index=None: layers.Embedding(weight, padding_index),
    "flatten": lambda: layers.Function(lambda x: functions.reshape(x, (x.shape[0], -1))),
    "relu": lambda: layers.Function(functions.relu),
    "tanh": lambda: layers.Function(functions.tanh),
    "gelu": lambda: layers.Function(functions.gelu),
    "hardswish": lambda: layers.Function(functions.hardswish),
    "lazy_dense": _no_lazy_layers,
    "lstm": sequences.LSTM,
    "gru": sequences.GRU,
    "attention": _attention,
    "sequential": lambda layers: _chain(layers),
}


def _chain(modules: Sequence[Module]) -> Module:
    return layers.Chain(*modules)


def layer(kind: str, **config: Any) -> Any:
    if kind not in LAYERS:
        raise NoSampleError(f"toygrad has no layer {kind}")
    return LAYERS[kind](**config)


def set_buffer(model: Any, name: str, value: Any) -> None:
    getattr(model, name).write(value.data)


def own_normal(generator: Any, shape: Sequence[int]) -> Any:
    raise UnsupportedError("backend 'toy' has no generators but its global one")


def generator(seed: int) -> Any:
    raise UnsupportedError("backend 'toy' has no generators but its global one")


def no_grad() -> AbstractContextManager[Any]:
    return toygrad.no_record()


def mixed_precision(dtype: str) -> AbstractContextManager[Any]:
    raise UnsupportedError("backend 'toy' has no mixed precision")


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    point = Parameter(x.data if isinstance(x, Tensor) else x)
    toygrad.backward(function(point))
    return point.grad if point.grad is not None else Tensor(np.zeros_like(point.data))


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    return partial(optimizers.SGD, rate=rate, momentum=momentum, decay=decay)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    return partial(optimizers.AdamW, rate=rate, decay=decay)


def change(parameter: Any, array: Any) -> None:
    parameter.write(array)


def change_hidden(parameter: Any, array: Any) -> None:
    parameter.data[...] = array


def storage_alive(tensor: Any) -> Callable[[], bool]:
    array = tensor.data
    while isinstance(array.base, np.ndarray):
        array = array.base
    held = weakref.ref(array)
    return lambda: held() is not None


def shared_tensor(array: Any) -> Any:
    return Tensor.of(array)

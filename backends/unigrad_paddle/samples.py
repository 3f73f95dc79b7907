"""The suite's native test material."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import paddle
from paddle.base import core

from unigrad.errors import UnsupportedError
from unigrad.samples import NoSampleError
from unigrad_paddle.arrays import from_numpy
from unigrad_paddle.sample_layers import Model, make_layer, make_parameter
from unigrad_paddle.sample_operations import Operations

operations = Operations()

conventions: Mapping[str, str] = {"running_variance": "biased", "in_place": "yes", "dense_layout": "in, out"}


def tensor(array: Any, dtype: str | None = None) -> Any:
    """Return a tensor with a copy of the values."""
    made = from_numpy(array)
    return made if dtype is None else made.astype(dtype)


def leaf(array: Any, dtype: str | None = None) -> Any:
    """Return a trainable leaf that belongs to no layer."""
    return make_parameter(array, dtype)


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> Any:
    """Return a layer with named members and the given forward."""
    if generators:
        raise NoSampleError("no operation of paddle draws from a generator other than the global one")
    return Model(forward, parameters or {}, buffers or {}, layers or {})


def layer(kind: str, **config: Any) -> Any:
    """Return a layer of a kind with the given values."""
    return make_layer(kind, config)


def set_buffer(model: Any, name: str, value: Any) -> None:
    """Write values into a buffer, in place as Paddle's own layers do."""
    with paddle.no_grad():
        getattr(model, name).set_value(value)


def own_normal(generator: Any, shape: Sequence[int]) -> Any:
    """Fail: there is no such operation."""
    raise NoSampleError("no operation of paddle draws from a generator other than the global one")


def generator(seed: int) -> Any:
    """Fail: nothing could be drawn from it."""
    raise NoSampleError("no operation of paddle draws from a generator other than the global one")


def no_grad() -> AbstractContextManager[Any]:
    """Return Paddle's own way to switch recording off."""
    context: AbstractContextManager[Any] = paddle.no_grad()
    return context


def mixed_precision(dtype: str) -> AbstractContextManager[Any]:
    """Fail: on a CPU ``paddle.amp.auto_cast`` computes in float32, whatever it is asked for."""
    raise UnsupportedError("paddle.amp.auto_cast does nothing on a CPU")


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Gradient of a scalar function at ``x`` by Paddle's own idiom."""
    with paddle.enable_grad():
        x = x.detach()
        x.stop_gradient = False
        return paddle.grad(function(x), x)[0]


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of stochastic gradient descent."""
    if not momentum:
        return lambda parameters: paddle.optimizer.SGD(rate, parameters, weight_decay=decay or None)
    return lambda parameters: paddle.optimizer.Momentum(rate, momentum, parameters, weight_decay=decay or None)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of AdamW."""
    return lambda parameters: paddle.optimizer.AdamW(rate, parameters=parameters, weight_decay=decay)


def change(parameter: Any, array: Any) -> None:
    """Write new values as an optimizer does: in place, without a new version."""
    with paddle.no_grad():
        parameter.set_value(from_numpy(array))


def change_hidden(parameter: Any, array: Any) -> None:
    """Write new values into memory shared by ``detach``; any native write is hidden from Paddle."""
    with paddle.no_grad():
        parameter.detach().set_value(from_numpy(array))


class _Memory(np.ndarray):  # type: ignore[type-arg]  # bytes of any kind
    """Memory that can be referred to weakly."""


def storage_alive(tensor: Any) -> Callable[[], bool]:
    """Return a function that tells whether the tensor's memory is alive.

    It can't be referred to weakly, so the values move to memory of another tensor that an array holds; what has saved the tensor
    moves with it.
    """
    owner = tensor.detach().clone()
    raw = (ctypes.c_byte * (owner.size * owner.element_size())).from_address(owner.data_ptr())
    memory = np.frombuffer(raw, tensor.numpy().dtype).reshape(tuple(owner.shape)).view(_Memory)
    memory.owner = owner  # type: ignore[attr-defined]
    reference = weakref.ref(memory)
    tensor.get_tensor()._share_data_with(core.from_dlpack(memory.__dlpack__()))
    return lambda: reference() is not None


def shared_tensor(array: Any) -> Any:
    """Return a tensor that shares memory with the array."""
    return paddle.utils.dlpack.from_dlpack(array)

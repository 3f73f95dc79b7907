"""What toygrad has of the suite's layers and operations. See ``unigrad.samples``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import toygrad
from toygrad import SGD, Buffer, Dense, Dropout, Module, Parameter, Tensor

from unigrad.samples import NoSampleError


class Operations:
    """Operations that toygrad has; each other one is no sample."""

    tanh = staticmethod(toygrad.tanh)
    sin = staticmethod(toygrad.sin)
    stop_gradient = staticmethod(toygrad.detach)
    concat = staticmethod(toygrad.join)
    normal = staticmethod(toygrad.noise)
    uniform = staticmethod(toygrad.uniform)
    dropout = staticmethod(toygrad.dropout)

    def sum(self, x: Tensor, axis: int | None = None) -> Tensor:
        """Sum of all elements."""
        if axis is not None:
            raise NoSampleError("sum along an axis")
        return toygrad.total(x)

    def mean(self, x: Tensor, axis: int | None = None) -> Tensor:
        """Mean of all elements."""
        return self.sum(x, axis) / x.data.size

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        """Matrix product."""
        return x @ y

    def index(self, x: Tensor, key: Any) -> Tensor:
        """Return ``x[key]``."""
        return x[key]

    def set_item(self, x: Tensor, index: int, value: float) -> Tensor:
        """Return a copy with another value for one element; writing in place is never recorded."""
        keep = np.ones_like(x.data)
        keep[index] = 0.0
        return toygrad.record(np.where(keep, x.data, value).astype(x.data.dtype), (x,), lambda c: (c * keep,))

    def __getattr__(self, name: str) -> Any:
        raise NoSampleError(f"toygrad has no {name}")


operations = Operations()
conventions: Mapping[str, str] = {"in_place": "no"}


class Layer(Module):
    """A module whose forward is a given function of itself and the inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        return self._function(self, *args, **kwargs)


def tensor(array: Any, dtype: str | None = None) -> Any:
    return Tensor(_floats(array, dtype))


def leaf(array: Any, dtype: str | None = None) -> Any:
    return Tensor(_floats(array, dtype), requires_grad=True)


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> Any:
    if generators:
        raise NoSampleError("toygrad has one generator only")
    made = Layer(forward)
    for name, value in (parameters or {}).items():
        setattr(made, name, value if isinstance(value, Parameter) else Parameter(_floats(value)))
    for name, value in (buffers or {}).items():
        setattr(made, name, Buffer(_floats(value)))
    for name, value in (layers or {}).items():
        setattr(made, name, value)
    return made


def layer(kind: str, **config: Any) -> Any:
    if kind == "dense":
        return Dense(config["weight"], config.get("bias"))
    if kind == "dropout":
        return Dropout(config["rate"])
    if kind == "tanh":
        return Layer(lambda self, x: toygrad.tanh(x))
    if kind == "sequential":
        made = Layer(_chain)
        for position, part in enumerate(config["layers"]):
            setattr(made, str(position), part)
        return made
    raise NoSampleError(f"toygrad has no layer {kind}")


def set_buffer(model: Any, name: str, value: Any) -> None:
    getattr(model, name).write(value.data)


def own_normal(generator: Any, shape: Sequence[int]) -> Any:
    raise NoSampleError("toygrad has one generator only")


def generator(seed: int) -> Any:
    raise NoSampleError("toygrad has one generator only")


def no_grad() -> AbstractContextManager[Any]:
    return toygrad.no_record()


def mixed_precision(dtype: str) -> AbstractContextManager[Any]:
    raise NoSampleError("toygrad has no mixed precision")


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    raise NoSampleError("toygrad leaves the way back to others")


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    if decay:
        raise NoSampleError("toygrad has no weight decay")
    return partial(SGD, rate=rate, momentum=momentum)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    raise NoSampleError("toygrad has no AdamW")


def change(parameter: Any, array: Any) -> None:
    parameter.write(array)


def change_hidden(parameter: Any, array: Any) -> None:
    parameter.data[...] = array


def storage_alive(tensor: Any) -> Callable[[], bool]:
    held = weakref.ref(tensor.data)
    return lambda: held() is not None


def shared_tensor(array: Any) -> Any:
    made = Tensor(_floats(array))  # refuses other dtypes
    made.data = array
    return made


def _chain(self: Any, x: Any) -> Any:
    for part in [value for value in vars(self).values() if isinstance(value, Module)]:
        x = part(x)
    return x


def _floats(array: Any, dtype: str | None = None) -> Any:
    found = np.asarray(array)
    wanted = dtype or str(found.dtype)
    if wanted not in ("float32", "float64"):
        raise NoSampleError(f"toygrad has no {wanted}")
    return found.astype(wanted)

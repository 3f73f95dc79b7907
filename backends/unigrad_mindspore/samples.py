"""The suite's native test material."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import mindspore
from mindspore import Parameter, ops

from unigrad.errors import UnsupportedError
from unigrad.samples import Accuracy
from unigrad_mindspore.arrays import cast, from_numpy
from unigrad_mindspore.kernels import settle
from unigrad_mindspore.pynative import holders
from unigrad_mindspore.sample_layers import Model, make_layer
from unigrad_mindspore.sample_operations import Operations
from unigrad_mindspore.sample_optimizers import make_adamw, make_sgd

operations = Operations()

# https://github.com/mindspore-ai/mindspore/issues/348
accuracy: Mapping[str, Mapping[str, Accuracy]] = {
    "float32": {
        "tanh": Accuracy(
            2.1e-4, "a quotient of polynomials on the CPU, and 1 beyond 5 where 1 - 9.1e-5 is right (2.01e-4 measured)"
        ),
        "exp": Accuracy(3.2e-6, "a short polynomial on the CPU (2.88e-6 measured)"),
    }
}

conventions: Mapping[str, str] = {"running_variance": "unbiased", "in_place": "no", "dense_layout": "out, in"}


def tensor(array: Any, dtype: str | None = None) -> Any:
    """Return a tensor with a copy of the values."""
    made = from_numpy(array)
    return made if dtype is None else cast(made, dtype)


def leaf(array: Any, dtype: str | None = None) -> Any:
    """Return a trainable leaf that belongs to no Cell."""
    if dtype in ("float16", "bfloat16"):
        raise UnsupportedError(
            f"backend 'mindspore' does not support gradients of {dtype}; it does of: float32, float64"
        )
    return Parameter(tensor(array, dtype), name="leaf")


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> Any:
    """Return a Cell with named members and the given forward."""
    if generators:
        raise UnsupportedError("backend 'mindspore' has no generators: no operation on the CPU draws from one")
    return Model(forward, parameters or {}, buffers or {}, layers or {})


def layer(kind: str, **config: Any) -> Any:
    """Return a layer of a kind with the given values."""
    return make_layer(kind, config)


def set_buffer(model: Any, name: str, value: Any) -> None:
    """Write values into a buffer, as MindSpore's own layers do."""
    ops.assign(getattr(model, name), ops.stop_gradient(value))


def own_normal(generator: Any, shape: Sequence[int]) -> NoReturn:
    """Raise; no operation draws from a generator."""
    raise UnsupportedError("backend 'mindspore' has no generators: no operation on the CPU draws from one")


def generator(seed: int) -> NoReturn:
    """Raise; no operation draws from a generator."""
    raise UnsupportedError("backend 'mindspore' has no generators: no operation on the CPU draws from one")


def no_grad() -> AbstractContextManager[Any]:
    """Return MindSpore's own way to switch recording off."""
    context: AbstractContextManager[Any] = mindspore._no_grad()
    return context


def mixed_precision(dtype: str) -> NoReturn:
    """Raise; MindSpore's mixed precision is a property of a Cell, there is no context."""
    raise UnsupportedError(f"backend 'mindspore' has no mixed-precision context, so none in {dtype}")


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Gradient of a scalar function at ``x`` by MindSpore's own idiom."""
    return mindspore.grad(function)(x)


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of stochastic gradient descent."""
    return lambda parameters: make_sgd(parameters, rate, momentum, decay)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of AdamW."""
    return lambda parameters: make_adamw(parameters, rate, decay)


def change(parameter: Any, array: Any) -> None:
    """Write new values as an optimizer does."""
    ops.assign(parameter, cast(from_numpy(array), str(parameter.dtype).lower()))
    settle()


def change_hidden(parameter: Any, array: Any) -> None:
    """Write new values into the memory, which a NumPy view shares."""
    parameter.asnumpy()[...] = array


def storage_alive(tensor: Any) -> Callable[[], bool]:
    """Return a function that tells whether the tensor's memory is alive."""
    address = tensor.asnumpy().base

    def alive() -> bool:
        settle()
        return holders(address) > 0

    return alive


def shared_tensor(array: Any) -> Any:
    """Return a tensor that shares memory with the array."""
    return mindspore.from_numpy(array)

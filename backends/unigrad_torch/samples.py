"""The suite's native test material."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from unigrad_torch.arrays import assign, from_numpy
from unigrad_torch.sample_layers import Model, make_layer
from unigrad_torch.sample_operations import Operations

operations = Operations()

conventions: Mapping[str, str] = {"running_variance": "unbiased", "in_place": "yes", "dense_layout": "out, in"}


def tensor(array: Any, dtype: str | None = None) -> Any:
    """Return a tensor with a copy of the values."""
    made = from_numpy(array)
    return made if dtype is None else made.to(getattr(torch, dtype))


def leaf(array: Any, dtype: str | None = None) -> Any:
    """Return a trainable leaf that belongs to no module."""
    return torch.nn.Parameter(tensor(array, dtype))


def model(
    forward: Callable[..., Any],
    *,
    parameters: Mapping[str, Any] | None = None,
    buffers: Mapping[str, Any] | None = None,
    layers: Mapping[str, Any] | None = None,
    generators: Mapping[str, int] | None = None,
) -> Any:
    """Return a module with named members and the given forward."""
    return Model(forward, parameters or {}, buffers or {}, layers or {}, generators or {})


def layer(kind: str, **config: Any) -> Any:
    """Return a layer of a kind with the given values."""
    return make_layer(kind, config)


def _hooked(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


engines: Mapping[str, Callable[[Any], Any]] = {"native": _hooked}


def set_buffer(model: Any, name: str, value: Any) -> None:
    """Write values into a buffer, in place as torch's own layers do."""
    with torch.no_grad():
        getattr(model, name).copy_(value)


def own_normal(generator: Any, shape: Sequence[int]) -> Any:
    """Draw standard normal noise from a generator of one's own."""
    return torch.randn(tuple(shape), generator=generator)


def generator(seed: int) -> Any:
    """Return a generator that belongs to no module."""
    return torch.Generator().manual_seed(seed)


def no_grad() -> AbstractContextManager[Any]:
    """Return torch's own way to switch recording off."""
    return torch.no_grad()


def mixed_precision(dtype: str) -> AbstractContextManager[Any]:
    """Return torch's own autocast."""
    return torch.autocast("cpu", getattr(torch, dtype))


def call_native_gradient(function: Callable[[Any], Any], x: Any) -> Any:
    """Gradient of a scalar function at ``x`` by torch's own idiom."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x), x)[0]


def sgd(rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of stochastic gradient descent."""
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)


def adamw(rate: float, decay: float = 0.0) -> Callable[..., Any]:
    """Return a factory of AdamW."""
    return lambda parameters: torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)


def change(parameter: Any, array: Any) -> None:
    """Write new values as an optimizer does."""
    assign(parameter, array)


def change_hidden(parameter: Any, array: Any) -> None:
    """Write new values through ``.data``, which no version counter notices."""
    parameter.data.copy_(from_numpy(array))


def storage_alive(tensor: Any) -> Callable[[], bool]:
    """Return a function that tells whether the tensor's memory is alive."""
    reference = StorageWeakRef(tensor.untyped_storage())
    return lambda: not reference.expired()


def shared_tensor(array: Any) -> Any:
    """Return a tensor that shares memory with the array."""
    return torch.from_numpy(array)

"""A module as named tensors; tensors to and from NumPy; arithmetic on gradients. See ``unigrad.protocols.BlockModule``."""

from __future__ import annotations

import copy as copying
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from unigrad.protocols import Entry, Structure
from unigrad_numpy import ops
from unigrad_numpy.facade import facade
from unigrad_numpy.graph import changed_state, state
from unigrad_numpy.nn import BatchNorm, Module
from unigrad_numpy.structure import describe, places, unchanged
from unigrad_numpy.tensor import Tensor, wrap

__all__ = [
    "add",
    "assign",
    "call",
    "cast",
    "clip_factor",
    "clone",
    "concat",
    "copy",
    "couples_samples",
    "dtype",
    "equal",
    "facade",
    "from_numpy",
    "is_floating",
    "is_model",
    "is_tensor",
    "layers",
    "modes",
    "narrow",
    "on_built",
    "requires_gradient",
    "scale",
    "set_modes",
    "set_trainable",
    "set_training",
    "shape",
    "snapshot",
    "structure",
    "swap",
    "to_numpy",
    "trainable",
    "training",
    "unwrap",
    "version",
    "watch_calls",
    "zeros",
]


def is_model(obj: object) -> bool:
    """Whether ``obj`` is a module."""
    return isinstance(obj, Module)


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a tensor or parameter."""
    return isinstance(obj, Tensor)


def unwrap(model: Any) -> Any:
    """Return the module itself; there are no wrappers."""
    return model


def structure(model: Any, known: Structure | None = None) -> Structure:
    """Describe the module; return ``known`` itself if nothing has changed."""
    return known if known is not None and unchanged(model, known) else describe(model)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    """Call the module in a mode, frozen layers in inference mode; modes are afterwards as they were."""
    if (training is None or training == model.training) and not frozen:
        return model(*args, **kwargs)
    before = modes(model)
    try:
        if training is not None and training != model.training:
            model.train(training)
        for layer in frozen:
            vars(layer)["training"] = False
        return model(*args, **kwargs)
    finally:
        set_modes(model, before)


def training(model: Any) -> bool:
    """Return the mode of the module."""
    return bool(model.training)


def set_training(model: Any, training: bool) -> None:
    """Set the mode of the module and all its layers."""
    model.train(training)


def modes(model: Any) -> list[tuple[Module, bool]]:
    """Return the mode of every layer."""
    return [(module, module.training) for module in model.modules()]


def set_modes(model: Any, modes: list[tuple[Module, bool]]) -> None:
    """Set the mode of every layer."""
    for module, mode in modes:
        vars(module)["training"] = mode


def couples_samples(model: Any) -> str | None:
    """Path of the first batch normalization that would use statistics of the batch."""
    return next((path for path, module in places(model) if isinstance(module, BatchNorm) and module.training), None)


def copy(model: Any) -> Any:
    """Deep copy of the module."""
    return copying.deepcopy(model)


def layers(model: Any) -> list[Module]:
    """Return the module and all modules inside it."""
    return list(model.modules())


def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> AbstractContextManager[Any]:
    """Call ``callback(module)`` before each module that this thread calls."""
    return changed_state(calls=(*state.calls, callback))


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` when a pending layer has created its parameters; returns the undo."""
    undo = [module.on_built(callback) for module in model.modules() if module.pending]

    def undo_all() -> None:
        for one in undo:
            one()

    return undo_all


def trainable(parameter: Any) -> bool:
    """Whether the parameter takes gradients now."""
    return bool(parameter.requires_grad and parameter.node is None)


def set_trainable(parameter: Any, trainable: bool) -> None:
    """Make the parameter take gradients or not."""
    parameter.requires_grad = trainable


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    """Exchange buffers; a place that is named twice (by a module and its facade) is exchanged once, so that the same call undoes it."""
    before = []
    done: set[tuple[int, str]] = set()
    for entry, tensor in zip(entries, tensors, strict=True):
        buffers = vars(entry.owner)["_buffers"]
        place = (id(buffers), entry.key)
        if place in done:
            before.append(tensor)
            continue
        done.add(place)
        before.append(buffers[entry.key])
        buffers[entry.key] = tensor
    return before


def assign(tensor: Any, array: Any) -> None:
    """Write values in place, counted by the version."""
    array = np.asarray(array)
    tensor.assign(array.astype(array.dtype.newbyteorder("="), copy=False))


def version(tensor: Any) -> Hashable:
    """Return how often the tensor was written."""
    return int(tensor.version)


def to_numpy(tensor: Any) -> Any:
    """Return a C-contiguous copy of the values."""
    return tensor.numpy()


def from_numpy(array: Any) -> Any:
    """Return a tensor with a copy of the values."""
    return Tensor(np.asarray(array))


def shape(tensor: Any) -> tuple[int, ...]:
    """Return the shape."""
    return tuple(tensor.shape)


def dtype(tensor: Any) -> str:
    """Return the name of the dtype."""
    return str(tensor.dtype.name)


def is_floating(tensor: Any) -> bool:
    """Whether the elements are real floating-point numbers."""
    return bool(tensor.dtype.kind == "f")


def requires_gradient(tensor: Any) -> bool:
    """Whether the tensor is a trainable leaf or has a graph."""
    return bool(tensor.requires_grad)


def clone(tensor: Any) -> Any:
    """Return a copy without a graph."""
    return wrap(tensor.numpy())


def snapshot(tensor: Any) -> Any:
    """Return a copy."""
    return clone(tensor)


def zeros(tensor: Any) -> Any:
    """Return zeros of the same shape and dtype."""
    return wrap(np.zeros(tensor.shape, tensor.dtype))


def add(left: Any, right: Any) -> Any:
    """Return the sum."""
    with np.errstate(all="ignore"):  # a gradient that is inf or nan is an answer
        return ops.add(left, right)


def scale(tensor: Any, factor: Any) -> Any:
    """Return the tensor times a number, in the tensor's dtype."""
    if isinstance(factor, Tensor):
        factor = ops.cast(factor, tensor.dtype)
    with np.errstate(all="ignore"):  # a gradient that is inf or nan is an answer
        return ops.mul(tensor, factor)


def cast(tensor: Any, dtype: str) -> Any:
    """Return the tensor in another dtype."""
    return ops.cast(tensor, dtype)


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    """Return ``min(1, maximum / norm)``, the norm taken in float64; nan for a norm that is no number."""
    norm = math.sqrt(sum(float(np.square(tensor._array, dtype=np.float64).sum()) for tensor in tensors))
    return 1.0 if norm == 0 or norm <= maximum else maximum / norm


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    """Return a part along ``axis`` as a view."""
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def concat(tensors: Sequence[Any], axis: int) -> Any:
    """Join tensors along ``axis``."""
    return ops.concat(tensors, axis)


def equal(left: Any, right: Any) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    a, b = left._array, right._array
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())

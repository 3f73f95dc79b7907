"""A toygrad module as named tensors; tensors to and from NumPy. See ``unigrad.protocols.BlockModule``."""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from toygrad import Buffer, Module, Parameter, Tensor, functions, sequences, state
from toygrad import layers as kinds

from unigrad.protocols import Entry, Structure
from unigrad_toy.facade import facade as facade

ROLES = {
    kinds.Dense: "dense",
    kinds.Conv2d: "conv",
    kinds.ConvTranspose2d: "transposed conv",
    kinds.Embedding: "embedding",
    kinds.BatchNorm: "norm",
    kinds.LayerNorm: "norm",
    sequences.Recurrent: "recurrent",
}
RECURRENT_NAMES = {
    "input_weight": "weight_ih_l0",
    "hidden_weight": "weight_hh_l0",
    "input_bias": "bias_ih_l0",
    "hidden_bias": "bias_hh_l0",
}


def is_model(obj: object) -> bool:
    return isinstance(obj, Module)


def is_tensor(obj: object) -> bool:
    return isinstance(obj, Tensor)


def unwrap(model: Any) -> Any:
    return model


def structure(model: Any, known: Structure | None = None) -> Structure:
    # By its dictionary, which a module shares with its facade.
    places = [(path, module, vars(module)) for path, module in model.modules()]
    token = [
        (path, id(held), [(key, id(value)) for key, value in held.items() if isinstance(value, (Module, Tensor))])
        for path, _, held in places
    ]
    if known is not None and known.token == token:
        return known
    parameters, buffers, norms = [], [], {}
    seen: set[int] = set()
    for path, module, held in places:
        role = next((role for kind, role in ROLES.items() if isinstance(module, kind)), "other")
        for key, value in held.items():
            leaf = RECURRENT_NAMES.get(key, key) if role == "recurrent" else key
            name, native = (f"{path}.{last}" if path else last for last in (leaf, key))
            entry = Entry(name, native, value, role, path, module, key)
            if isinstance(value, Parameter):
                parameters.append(entry)
            elif isinstance(value, Buffer) and id(held) not in seen:
                buffers.append(entry)
        if isinstance(module, kinds.BatchNorm) and id(held) not in seen:
            norms[path] = module
        seen.add(id(held))
    return Structure(tuple(parameters), tuple(buffers), norms=norms, token=token)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    before = modes(model)
    try:
        if training is not None:
            set_training(model, training)
        for layer in frozen:
            layer.training = False
        return model(*args, **kwargs)
    finally:
        set_modes(model, before)


def training(model: Any) -> bool:
    return bool(model.training)


def set_training(model: Any, training: bool) -> None:
    for _, module in model.modules():
        module.training = training


def modes(model: Any) -> Any:
    return [(module, module.training) for _, module in model.modules()]


def set_modes(model: Any, modes: Any) -> None:
    for module, mode in modes:
        module.training = mode


def couples_samples(model: Any) -> str | None:
    norms = (path for path, module in model.modules() if isinstance(module, kinds.BatchNorm) and module.training)
    return next(norms, None)


def copy(model: Any) -> Any:
    return copies.deepcopy(model)


def layers(model: Any) -> list[Any]:
    return list({id(module): module for _, module in model.modules()}.values())


def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> AbstractContextManager[Any]:
    return state.changed(call_hooks=(*state.call_hooks, callback))


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    return lambda: None  # toygrad creates every parameter at once


def trainable(parameter: Any) -> bool:
    return bool(parameter.trainable)


def set_trainable(parameter: Any, trainable: bool) -> None:
    parameter.trainable = trainable


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    before = [vars(entry.owner)[entry.key] for entry in entries]
    for entry, tensor in zip(entries, tensors, strict=True):
        vars(entry.owner)[entry.key] = tensor
    return before


def assign(tensor: Any, array: Any) -> None:
    tensor.write(array)


def version(tensor: Any) -> Hashable:
    return int(tensor.memory.writes)


def to_numpy(tensor: Any) -> Any:
    return np.array(tensor.data, order="C")


def from_numpy(array: Any) -> Any:
    return Tensor(array)


def shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.data.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.data.dtype)


def is_floating(tensor: Any) -> bool:
    return bool(tensor.data.dtype.kind == "f")


def requires_gradient(tensor: Any) -> bool:
    return bool(tensor.tracked)


def clone(tensor: Any) -> Any:
    return Buffer(tensor.data) if isinstance(tensor, Buffer) else Tensor(tensor.data)


def snapshot(tensor: Any) -> Any:
    return clone(tensor)


def zeros(tensor: Any) -> Any:
    return Tensor(np.zeros_like(tensor.data))


def add(left: Any, right: Any) -> Any:
    with np.errstate(all="ignore"):  # a gradient that is inf or nan is an answer
        return left + right


def scale(tensor: Any, factor: Any) -> Any:
    with np.errstate(all="ignore"):
        return tensor * (functions.cast(factor, dtype(tensor)) if isinstance(factor, Tensor) else factor)


def cast(tensor: Any, dtype: str) -> Any:
    return functions.cast(tensor, dtype)


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    norm = float(np.sqrt(sum(float(np.square(t.data, dtype=np.float64).sum()) for t in tensors)))
    return float(np.minimum(1.0, maximum / norm)) if norm else 1.0  # min() of Python would turn nan into 1


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def concat(tensors: Sequence[Any], axis: int) -> Any:
    return functions.join(tensors, axis)


def equal(left: Any, right: Any) -> bool:
    same = left.data.shape == right.data.shape and left.data.dtype == right.data.dtype
    return bool(same and left.data.tobytes() == right.data.tobytes())

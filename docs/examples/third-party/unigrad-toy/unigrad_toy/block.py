"""A toygrad module as named tensors. See ``unigrad.protocols.BlockModule``."""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from toygrad import Buffer, Module, Parameter, Tensor, sequences, state
from toygrad import layers as kinds

from unigrad.facade import ForwardFacade, make
from unigrad.protocols import Entry, Structure

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


def facade(model: Any, run: Callable[..., Any]) -> Any:
    return make(ForwardFacade, model, run)


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

"""A module as named tensors. See ``unigrad.protocols.BlockModule``."""

from __future__ import annotations

import copy as copying
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from unigrad.facade import ForwardFacade, make
from unigrad.protocols import Entry, Structure
from unigrad_numpy.graph import changed_state, state
from unigrad_numpy.nn import BatchNorm, Module
from unigrad_numpy.structure import describe, places, unchanged


def is_model(obj: object) -> bool:
    """Whether ``obj`` is a module."""
    return isinstance(obj, Module)


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


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a module that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    return make(ForwardFacade, model, run)


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

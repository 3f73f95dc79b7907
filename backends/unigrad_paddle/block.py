"""A ``paddle.nn.Layer`` as named tensors."""

from __future__ import annotations

import copy as _copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from paddle import nn

from unigrad.errors import NotBuiltError
from unigrad.facade import make
from unigrad.protocols import Entry, Structure
from unigrad_paddle.calls import watched
from unigrad_paddle.compiled import refuse_compiled
from unigrad_paddle.facade import LayerFacade
from unigrad_paddle.framework import batch_norms
from unigrad_paddle.layers import always_of_the_batch, describe, inner, is_pending, unchanged
from unigrad_paddle.layers import layers as named_layers


def is_model(obj: object) -> bool:
    """Whether ``obj`` is a ``paddle.nn.Layer``."""
    return isinstance(obj, nn.Layer)


def unwrap(model: Any) -> Any:
    """Return the layer inside DataParallel, else the layer itself."""
    return inner(model)


def structure(model: Any, known: Structure | None = None) -> Structure:
    """Describe the layer; return ``known`` itself if nothing was added, removed, replaced or initialized since."""
    refuse_compiled("a block")
    if known is not None and unchanged(model, known):
        return known
    return describe(model)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    """Call the layer; modes are afterwards as they were."""
    switch = training is not None and model.training != training
    if not switch and not frozen:
        return _called(model, args, kwargs)
    before = modes(model)
    try:
        if switch:
            set_training(model, bool(training))
        for layer in frozen:
            layer.training = False
        return _called(model, args, kwargs)
    finally:
        set_modes(model, before)


def _called(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        return model(*args, **kwargs)
    except RuntimeError as error:
        waiting = describe(inner(model)).pending
        if waiting:
            raise NotBuiltError(
                f"these layers were made under LazyGuard and have no values yet: {', '.join(waiting) or 'the model itself'}; call "
                "initialize() of their parameters, or load a state into them natively"
            ) from error
        raise


def training(model: Any) -> bool:
    """Return the mode of the layer."""
    return bool(model.training)


def set_training(model: Any, training: bool) -> None:
    """Set the mode of the layer and all layers inside it."""
    (model.train if training else model.eval)()


def modes(model: Any) -> list[tuple[Any, bool]]:
    """Return the modes of all layers."""
    return [(layer, layer.training) for layer in model.sublayers(include_self=True)]


def set_modes(model: Any, modes: list[tuple[Any, bool]]) -> None:
    """Set the modes of all layers as ``modes`` returned them."""
    for layer, mode in modes:
        layer.training = mode


def couples_samples(model: Any) -> str | None:
    """Path of the first batch normalization that would use the statistics of the batch, else None."""
    for path, _, layer in named_layers(model):
        if not isinstance(layer, batch_norms):
            continue
        if always_of_the_batch(layer) or (layer.training and not layer._use_global_stats):
            return path
    return None


def copy(model: Any) -> Any:
    """Deep copy of the layer."""
    return _copy.deepcopy(model)


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a layer that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    return make(LayerFacade, model, run)


def layers(model: Any) -> list[Any]:
    """Return the layer and all layers inside it."""
    return list(model.sublayers(include_self=True))


def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> AbstractContextManager[Any]:
    """Call ``callback(layer)`` before each layer that this thread calls."""
    return watched(callback)


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` each time a pending layer has just created its parameters; return the undo."""
    waiting = [layer for _, _, layer in named_layers(model) if is_pending(layer)]

    def report(layer: Any) -> Callable[..., Any]:
        build = layer._build_once

        def built(*args: Any, **kwargs: Any) -> Any:
            result = build(*args, **kwargs)
            layer._built = True  # as Paddle says right after it
            callback()
            return result

        return built

    for layer in waiting:
        object.__setattr__(layer, "_build_once", report(layer))

    def undo() -> None:
        for layer in waiting:
            vars(layer).pop("_build_once", None)

    return undo


def trainable(parameter: Any) -> bool:
    """Whether the parameter is a leaf that takes a gradient."""
    return bool(not parameter.stop_gradient and parameter.is_leaf)


def set_trainable(parameter: Any, trainable: bool) -> None:
    """Make the parameter take a gradient or not."""
    parameter.stop_gradient = not trainable


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    """Put ``tensors`` in the places of the buffers, of which batch normalization keeps some among its parameters."""
    places = [
        entry.owner._parameters if entry.key in entry.owner._parameters else entry.owner._buffers for entry in entries
    ]
    before = [place[entry.key] for place, entry in zip(places, entries, strict=True)]
    for place, entry, tensor in zip(places, entries, tensors, strict=True):
        place[entry.key] = tensor
    return before

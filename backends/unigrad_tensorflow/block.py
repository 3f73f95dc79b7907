"""A model of Keras or a ``tf.Module`` as named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MethodType
from typing import Any

import keras

from unigrad.protocols import Entry, Structure
from unigrad_tensorflow import layers as known
from unigrad_tensorflow.arrays import is_floating, is_variable, value
from unigrad_tensorflow.calls import in_mode
from unigrad_tensorflow.calls import on_built as on_built
from unigrad_tensorflow.calls import watch_calls as watch_calls
from unigrad_tensorflow.copies import copy as copy
from unigrad_tensorflow.facade import facade as facade
from unigrad_tensorflow.private import raw, stop_recording
from unigrad_tensorflow.structure import describe, is_module, places, unchanged
from unigrad_tensorflow.writes import same_reading


def is_model(obj: object) -> bool:
    """Whether ``obj`` is a layer or model of Keras, or a ``tf.Module``."""
    return is_module(obj)


def unwrap(model: Any) -> Any:
    """Return the model itself; there are no wrappers."""
    return model


def structure(model: Any, known: Structure | None = None) -> Structure:
    """Describe the model; return ``known`` itself if nothing has changed."""
    return known if known is not None and unchanged(model, known) else describe(model)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    """Call the model in a mode, which Keras takes as an argument, frozen normalizations in inference mode."""
    if not frozen:
        return in_mode(model, args, kwargs, training)
    before = modes(model)
    try:
        for layer in frozen:
            set_training(layer, False)
        return in_mode(model, args, kwargs, training)
    finally:
        set_modes(model, before)


def training(model: Any) -> bool:
    """Return False: layers of Keras have no mode of their own, and run in inference unless told otherwise."""
    return False


def _inference(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
    return type(layer).call(layer, inputs, training=False, mask=mask)


def set_training(model: Any, training: bool) -> None:
    """Hold a normalization layer in inference, or undo that; for all else the mode is an argument of the call."""
    if known.is_norm(model):
        if training:
            vars(model).pop("call", None)
        else:
            vars(model)["call"] = MethodType(_inference, model)


def modes(model: Any) -> list[tuple[Any, bool]]:
    """Return for each normalization layer whether it is free to follow the mode of the call."""
    return [(layer, "call" not in vars(layer)) for layer in layers(model) if known.is_norm(layer)]


def set_modes(model: Any, modes: list[tuple[Any, bool]]) -> None:
    """Set what :func:`modes` returned."""
    for layer, free in modes:
        if free != ("call" not in vars(layer)):
            set_training(layer, free)


def couples_samples(model: Any) -> str | None:
    """Path of the first batch normalization that would use the statistics of the batch, if the call is one of training."""
    from unigrad.wrapping import wrap  # the core imports this module by name

    chosen = wrap(model).memory.training
    if chosen is None:
        state = running_mode()
        chosen = bool(state)
    if not chosen:
        return None
    return next(
        (
            path
            for path, layer in places(model)
            if known.is_norm(layer) and layer.trainable and "call" not in vars(layer)
        ),
        None,
    )


def running_mode() -> bool | None:
    """Return the mode of the call of Keras that runs now, None if there is none."""
    from unigrad_tensorflow.private import call_state

    context = call_state()["current_call_ctx"]
    return None if context is None else context.get_value("training")


def layers(model: Any) -> list[Any]:
    """Return the model and all layers inside it, each once."""
    return list({id(module): module for _, module in places(model)}.values())


def trainable(parameter: Any) -> bool:
    """Whether the variable takes gradients now; of what Keras holds, Keras says so."""
    return bool(is_variable(parameter) and parameter.trainable and is_floating(parameter))


def set_trainable(parameter: Any, trainable: bool) -> None:
    """Make the variable take gradients or not."""
    if isinstance(parameter, keras.Variable):
        parameter.trainable = trainable
    elif is_variable(parameter):
        parameter._unigrad_parameter = True
        parameter._trainable = trainable


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    """Write ``tensors`` into the buffers, which stay the same objects; return the values that were there."""
    done: dict[int, Any] = {}
    before = []
    with stop_recording():
        for entry, tensor in zip(entries, tensors, strict=True):
            buffer = raw(entry.tensor)
            if id(buffer) not in done:
                done[id(buffer)] = value(buffer)
                # In a trace, to write what stands there would look like a change.
                if raw(tensor) is not buffer and not same_reading(done[id(buffer)], value(tensor)):
                    buffer.assign(value(tensor))
            before.append(done[id(buffer)])
    return before

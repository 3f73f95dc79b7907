"""A Cell as named tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mindspore import Parameter, nn
from mindspore.experimental import optim as experimental

from unigrad.protocols import Entry, Structure
from unigrad_mindspore.arrays import is_whole
from unigrad_mindspore.cells import BATCH_NORMS, describe, duplicate, inner, places, unchanged
from unigrad_mindspore.dispatch import seen
from unigrad_mindspore.facade import facade as facade
from unigrad_mindspore.kernels import explained
from unigrad_mindspore.precision import kept
from unigrad_mindspore.pynative import cells_watched, raise_pending
from unigrad_mindspore.usage import refuse_graph_mode, require_recording


def is_model(obj: object) -> bool:
    """Whether ``obj`` is a Cell, optimizers excepted."""
    return isinstance(obj, nn.Cell) and not isinstance(obj, nn.Optimizer | experimental.Optimizer)


def unwrap(model: Any) -> Any:
    """Return the Cell inside wrappers that change nothing, else the Cell itself."""
    return inner(model)


def structure(model: Any, known: Structure | None = None) -> Structure:
    """Describe the Cell; return ``known`` itself if nothing was added, removed or replaced since."""
    return known if known is not None and unchanged(model, known) else describe(model)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    """Call the Cell; modes are afterwards as they were, and an operation that fails later than it was called fails here."""
    refuse_graph_mode("a Block's call")
    require_recording()
    switch = training is not None and model.training != training
    before = modes(model) if switch or frozen else None
    statistics = [(layer, vars(layer)["use_batch_statistics"]) for layer in frozen if isinstance(layer, BATCH_NORMS)]
    try:
        if switch:
            set_training(model, bool(training))
        for layer in frozen:
            vars(layer)["training"] = False
        for layer, _ in statistics:
            vars(layer)["use_batch_statistics"] = False
        with explained(), seen(), kept():
            found = model(*args, **kwargs)
            raise_pending()
    finally:
        if before is not None:
            set_modes(model, before)
        for layer, chosen in statistics:
            vars(layer)["use_batch_statistics"] = chosen
    require_recording()
    return found


def training(model: Any) -> bool:
    """Return the mode of the Cell."""
    return bool(model.training)


def set_training(model: Any, training: bool) -> None:
    """Set the mode of the Cell and all its layers."""
    model.set_train(training)


def modes(model: Any) -> list[tuple[Any, bool]]:
    """Return the modes of all layers."""
    return [(cell, cell.training) for cell in layers(model)]


def set_modes(model: Any, modes: list[tuple[Any, bool]]) -> None:
    """Set the modes of all layers as ``modes`` returned them."""
    for cell, mode in modes:
        vars(cell)["training"] = mode


def couples_samples(model: Any) -> str | None:
    """Path of the first batch normalization that would use the statistics of the batch, else None."""
    for path, _, cell in places(model):
        if isinstance(cell, BATCH_NORMS):
            chosen = cell.use_batch_statistics
            if chosen or (chosen is None and cell.training):
                return path
    return None


def copy(model: Any) -> Any:
    """Deep copy of the Cell."""
    return duplicate(model)


def layers(model: Any) -> list[Any]:
    """Return the Cell and all Cells inside it."""
    found: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        cell = waiting.pop()
        if id(cell) not in found:
            found[id(cell)] = cell
            waiting += [child for child in cell._cells.values() if child is not None]
    return list(found.values())


@contextmanager
def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> Iterator[None]:
    """Call ``callback(cell)`` before each Cell that this thread calls."""
    thread = threading.get_ident()

    def before(cell: Any) -> None:
        if threading.get_ident() == thread and is_model(cell):
            callback(cell)

    with cells_watched(before):
        yield


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Return an undo of nothing: there are no layers without parameters."""
    return lambda: None


def trainable(parameter: Any) -> bool:
    """Whether the parameter is a leaf that requires a gradient."""
    return bool(parameter._requires_grad and parameter._is_leaf) and not is_whole(parameter)


def set_trainable(parameter: Any, trainable: bool) -> None:
    """Make the parameter require a gradient or not."""
    if isinstance(parameter, Parameter):
        parameter.requires_grad = trainable
    else:
        parameter.requires_grad_(trainable)


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    """Put ``tensors`` in the places of the buffers; return what stood there.

    A place that is named twice (by a Cell and its facade) is exchanged once, so that the same call undoes it.
    """
    before = []
    done: set[tuple[int, str]] = set()
    for entry, tensor in zip(entries, tensors, strict=True):
        held = entry.owner._params if entry.key in entry.owner._params else entry.owner._buffers
        place = (id(held), entry.key)
        if place in done:
            before.append(tensor)
            continue
        done.add(place)
        before.append(held[entry.key])
        held[entry.key] = tensor
    return before

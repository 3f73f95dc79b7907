"""The tree of Cells: paths, canonical names, roles, and whether any of it has changed."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

from mindspore import mint, nn

from unigrad.protocols import Entry, Structure
from unigrad_mindspore.arrays import never_trainable
from unigrad_mindspore.leaves import remember

__all__ = ["BATCH_NORMS", "describe", "duplicate", "inner", "places", "unchanged"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm)
"""Layers that hold the statistics; a BatchNorm3d holds a BatchNorm2d."""

_NORMS = (*BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_ROLES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((nn.Dense, mint.nn.Linear), "dense"),
    ((nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose), "transposed conv"),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), "conv"),
    ((nn.Embedding,), "embedding"),
    (_NORMS, "norm"),
    ((nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell), "recurrent"),
)
_STATISTICS = ("moving_mean", "moving_variance")
_LEAVES: Mapping[str, Mapping[str, str]] = {
    "norm": {
        "gamma": "weight",
        "beta": "bias",
        "moving_mean": "running_mean",
        "moving_variance": "running_var",
    },
    "embedding": {"embedding_table": "weight"},
}
"""Role -> the framework's name of a leaf -> the canonical one."""


def inner(model: Any) -> Any:
    """Return the Cell inside the wrappers that mixed precision puts around one, else the Cell itself."""
    while is_wrapper(model):
        model = model._cells["_backbone"]
    return model


def is_wrapper(model: Any) -> bool:
    """Whether the Cell is one that mixed precision puts around another."""
    return type(model).__module__ == "mindspore.train.amp" and list(model._cells) == ["_backbone"]


def places(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield path, native path and Cell of every place in the tree; a Cell that stands in several comes several times."""
    stack: list[tuple[str, str, Any, frozenset[int]]] = [("", "", model, frozenset())]
    while stack:
        path, native, cell, above = stack.pop()
        while is_wrapper(cell):
            cell, native = cell._cells["_backbone"], join(native, "_backbone")
        if id(cell) in above:  # a Cell that holds itself
            continue
        yield path, native, cell
        above = above | {id(cell)}
        for name, child in reversed(cell._cells.items()):
            if child is not None:
                place = path if isinstance(cell, nn.BatchNorm3d) else join(path, name)
                stack.append((place, join(native, name), child, above))


def join(path: str, name: str) -> str:
    """Return the path of a member."""
    return f"{path}.{name}" if path else name


def role_of(cell: Any) -> str:
    """Return the role of a layer's parameters."""
    return next((role for kinds, role in _ROLES if isinstance(cell, kinds)), "other")


def _canonical(role: str, key: str) -> str:
    return _LEAVES.get(role, {}).get(key, key)


def _is_buffer(role: str, key: str, parameter: Any) -> bool:
    if role == "other":
        return never_trainable(parameter)
    return key in _STATISTICS


def duplicate(model: Any) -> Any:
    """Deep copy of a Cell; a parameter that was frozen is one in the copy too, and no buffer."""
    twin = copy.deepcopy(model)
    for (_, _, old), (_, _, new) in zip(places(model), places(twin), strict=True):
        for key, parameter in old._params.items():
            made = new._params.get(key)
            if made is not None and never_trainable(made) and not never_trainable(parameter):
                made.requires_grad = True
                made.requires_grad = False
    return twin


@dataclass(slots=True)
class Token:
    """What ``unchanged`` compares: the dictionaries of all Cells and what they held, and parameters that never trained."""

    model: Any
    cells: list[Any]
    held: list[tuple[dict[str, Any], tuple[str, ...], list[Any]]]
    still: list[Any]


def _members(cell: Any) -> tuple[dict[str, Any], ...]:
    return cell._params, cell._buffers, cell._cells


def unchanged(model: Any, known: Structure) -> bool:
    """Whether the Cell still is what ``known`` describes."""
    token = known.token
    if token.model is not model:
        return False
    position = 0
    for cell in token.cells:
        for found in _members(cell):
            before, keys, values = token.held[position]
            position += 1
            if found is not before or len(found) != len(keys) or not all(map(is_, found.values(), values)):
                return False
            if keys and tuple(found) != keys:
                return False
    return all(map(never_trainable, token.still))


def describe(model: Any) -> Structure:
    """Describe the Cell anew.

    The statistics of normalization, which MindSpore keeps as parameters, are buffers, and so are parameters of the user's own
    Cells that never took gradients, as counters.
    """
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    norms: dict[str, Any] = {}
    cells: dict[int, Any] = {}
    still: list[Any] = []
    for path, native, cell in places(model):
        first = id(cell) not in cells
        cells[id(cell)] = cell
        role = role_of(cell)
        for held in (cell._params, cell._buffers):
            for key, tensor in held.items():
                if tensor is None and held is cell._params:
                    continue
                entry = Entry(join(path, _canonical(role, key)), join(native, key), tensor, role, path, cell, key)
                if held is cell._params and not _is_buffer(role, key, tensor):
                    parameters.append(entry)
                    remember(tensor)
                    continue
                buffers.append(entry)
                if held is cell._params and first and role == "other":
                    still.append(tensor)
        if cell._params.get("moving_mean") is not None and cell._params.get("moving_variance") is not None:
            norms[path] = cell
    held = [(found, tuple(found), list(found.values())) for cell in cells.values() for found in _members(cell)]
    token = Token(model, list(cells.values()), held, still)
    return Structure(tuple(parameters), tuple(buffers), (), norms, {}, token)

"""The tree of modules: paths, roles, pending layers, and whether any of it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from operator import is_
from typing import Any

import numpy as np

from unigrad.protocols import Entry, Structure
from unigrad_numpy import nn
from unigrad_numpy.nn.module import join

__all__ = ["describe", "places", "unchanged"]

_ROLES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((nn.Dense, nn.LazyDense), "dense"),
    (nn.Conv2d, "conv"),
    (nn.ConvTranspose2d, "transposed conv"),
    (nn.Embedding, "embedding"),
    ((nn.BatchNorm, nn.LayerNorm), "norm"),
    ((nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell), "recurrent"),
)
_KINDS = ("_parameters", "_buffers", "_modules")


def places(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield path and module of every place in the tree; a module that stands in several comes several times."""
    stack: list[tuple[str, nn.Module, frozenset[int]]] = [("", model, frozenset())]
    while stack:
        path, module, above = stack.pop()
        yield path, module
        above = above | {id(module)}
        for name, child in reversed(vars(module)["_modules"].items()):
            if id(child) not in above:
                stack.append((join(path, name), child, above))


def describe(model: nn.Module) -> Structure:
    """Return names, roles and owners of all tensors, and what :func:`unchanged` compares."""
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    pending: list[str] = []
    norms: dict[str, Any] = {}
    generators: dict[str, Any] = {}
    seen: dict[int, nn.Module] = {}
    for path, module in places(model):
        first = id(module) not in seen
        seen[id(module)] = module
        role = next((role for kinds, role in _ROLES if isinstance(module, kinds)), "other")
        for key, tensor in vars(module)["_parameters"].items():
            if tensor is not None or module.pending:
                name = join(path, key)
                parameters.append(Entry(name, name, tensor, role, path, module, key))
        if not first:
            continue
        for key, tensor in vars(module)["_buffers"].items():
            name = join(path, key)
            buffers.append(Entry(name, name, tensor, role, path, module, key))
        if module.pending:
            pending.append(path)
        if isinstance(module, nn.BatchNorm):
            norms[path] = module
        generators |= {join(path, key): value for key, value in _generators(module).items()}
    token = [
        (module, [(found, list(found), list(found.values())) for found in _members(module)], _generators(module))
        for module in seen.values()
    ]
    return Structure(tuple(parameters), tuple(buffers), tuple(pending), norms, generators, token)


def _members(module: nn.Module) -> list[dict[str, Any]]:
    return [vars(module)[kind] for kind in _KINDS]


def _generators(module: nn.Module) -> dict[str, np.random.Generator]:
    return {key: value for key, value in vars(module).items() if isinstance(value, np.random.Generator)}


def unchanged(model: nn.Module, known: Structure) -> bool:
    """Whether every layer still holds the same members under the same names."""
    token = known.token
    if vars(token[0][0]) is not vars(model):
        return False
    for module, members, generators in token:
        for found, keys, values in members:
            if len(found) != len(keys) or not all(map(is_, found.values(), values)) or list(found) != keys:
                return False
        if _generators(module) != generators:
            return False
    return True

"""The tree of layers: paths, roles, canonical names, wrappers, and whether any of it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import paddle
from paddle import nn
from paddle.nn.layer.conv import _ConvNd

from unigrad.protocols import Entry, Structure
from unigrad_paddle.arrays import is_half
from unigrad_paddle.framework import (
    Generator,
    RNNBase,
    RNNCellBase,
    SpectralNorm,
    batch_norms,
    instance_norms,
    is_initialized,
)
from unigrad_paddle.leaves import know
from unigrad_paddle.stand_ins import any_stand_in, original

_TRANSPOSED = (nn.Conv1DTranspose, nn.Conv2DTranspose, nn.Conv3DTranspose)
_ROLES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (nn.Linear, "dense"),
    (_TRANSPOSED, "transposed conv"),
    (_ConvNd, "conv"),
    (nn.Embedding, "embedding"),
    ((*batch_norms, instance_norms, nn.LayerNorm, nn.GroupNorm), "norm"),
    ((RNNBase, RNNCellBase), "recurrent"),
)
_STATISTICS = {"_mean": "running_mean", "_variance": "running_var"}
_NAMES: tuple[tuple[type | tuple[type, ...], dict[str, str]], ...] = (
    (batch_norms, _STATISTICS),
    (instance_norms, {"scale": "weight"}),
    (nn.PReLU, {"_weight": "weight"}),
)
"""Canonical leaf names where Paddle's differ."""

_DICT = attrgetter("__dict__")
_flat = chain.from_iterable


def inner(model: Any) -> Any:
    """Return the layer inside DataParallel, else the layer itself."""
    while isinstance(model, paddle.DataParallel):
        model = model._layers
    return model


def layers(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield structural path, native path and layer of every place in the tree, wrappers looked through.

    The cells inside a recurrent layer hold the same parameters once more and are left out.
    """
    stack: list[tuple[str, str, Any, frozenset[int]]] = [("", "", model, frozenset())]
    while stack:
        path, native, layer, above = stack.pop()
        while isinstance(layer, paddle.DataParallel):
            layer, native = layer._layers, f"{native}._layers".lstrip(".")
        if id(layer) in above:  # a layer that holds itself
            continue
        yield path, native, layer
        if isinstance(layer, RNNBase):
            continue
        above = above | {id(layer)}
        for name, child in reversed(layer._sub_layers.items()):
            if child is not None:
                stack.append((f"{path}.{name}" if path else name, f"{native}.{name}" if native else name, child, above))


def is_pending(layer: Any) -> bool:
    """Whether the layer makes its parameters at its first call, by Paddle's ``_build_once``, and was not called yet."""
    return type(layer)._build_once is not nn.Layer._build_once and not layer._built


def _role(layer: Any) -> str:
    return next((role for kinds, role in _ROLES if isinstance(layer, kinds)), "other")


def statistics(layer: Any) -> tuple[str, ...]:
    """Return the keys of what Paddle holds as frozen parameters and what is changed by a forward."""
    if isinstance(layer, batch_norms):
        return ("_mean", "_variance")
    return ("weight_u", "weight_v") if isinstance(layer, SpectralNorm) else ()


def _canonical(layer: Any, key: str) -> str:
    return next((names[key] for kinds, names in _NAMES if key in names and isinstance(layer, kinds)), key)


def always_of_the_batch(layer: Any) -> bool:
    """Whether a batch normalization was told to use, and to follow, the statistics of the batch in inference mode too."""
    return isinstance(layer, batch_norms[0]) and layer._use_global_stats is False


def _generators(layer: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(layer).items() if type(value) is Generator}


@dataclass(slots=True)
class Token:
    """What ``unchanged`` compares: the dictionaries of all layers and what they held.

    ``lazy`` are tensors without values, ``unbuilt`` layers without parameters; ``sparse`` names an embedding whose gradients are
    sparse, ``half`` is a trainable parameter of half precision.
    """

    layers: list[Any]
    rows: list[tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]]
    keys: list[tuple[str, ...]]
    values: list[Any]
    attributes: list[int]
    generators: list[tuple[Any, str, Any]]
    lazy: list[Any]
    unbuilt: list[Any]
    sparse: str | None
    half: Any


def _token(found: list[Any], lazy: list[Any], unbuilt: list[Any], sparse: str | None, half: Any) -> Token:
    rows = [(layer, layer._parameters, layer._buffers, layer._sub_layers) for layer in found]
    held = [part for _, *three in rows for part in three]
    return Token(
        found,
        rows,
        list(map(tuple, held)),
        list(_flat(part.values() for part in held)),
        list(map(len, map(_DICT, found))),
        [(layer, key, generator) for layer in found for key, generator in _generators(layer).items()],
        lazy,
        unbuilt,
        sparse,
        half,
    )


def unchanged(model: Any, known: Structure) -> bool:
    """Whether the layer still is what ``known`` describes."""
    token = known.token
    if token.layers[0] is not model:
        return False
    held = []
    for layer, parameters, buffers, children in token.rows:
        if layer._parameters is not parameters or layer._buffers is not buffers or layer._sub_layers is not children:
            return False
        held += (parameters, buffers, children)
    if list(map(tuple, held)) != token.keys:
        return False
    values = _flat(part.values() for part in held)
    if not all(map(is_, map(original, values) if any_stand_in() else values, token.values)):
        return False
    if any(map(is_initialized, token.lazy)) or not all(map(is_pending, token.unbuilt)):
        return False
    attributes = list(map(len, map(_DICT, token.layers)))
    if attributes != token.attributes:
        if sum(len(_generators(layer)) for layer in token.layers) != len(token.generators):
            return False
        token.attributes = attributes
    return all(vars(layer).get(key) is generator for layer, key, generator in token.generators)


def describe(model: Any) -> Structure:
    """Describe the layer anew."""
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    pending: list[str] = []
    norms: dict[str, Any] = {}
    generators: dict[str, Any] = {}
    found: dict[int, Any] = {}
    lazy: list[Any] = []
    unbuilt: list[Any] = []
    sparse: str | None = None
    for path, native, layer in layers(model):
        found[id(layer)] = layer
        role, moved = _role(layer), statistics(layer)
        waits = is_pending(layer)
        if waits:
            unbuilt.append(layer)
        for held in (layer._parameters, layer._buffers):
            for key, tensor in held.items():
                is_buffer = held is layer._buffers or key in moved
                if tensor is None and not is_buffer:
                    continue
                tensor = original(tensor)
                absent = tensor is not None and not is_initialized(tensor)
                if absent and is_buffer and not moved:
                    continue  # scratch space of a recurrent layer
                if absent:
                    waits = True
                    lazy.append(tensor)
                name, own = _join(path, _canonical(layer, key)), _join(native, key)
                entry = Entry(name, own, None if absent else tensor, role, path, layer, key)
                (buffers if is_buffer else parameters).append(entry)
        if waits:
            pending.append(path)
        if isinstance(layer, batch_norms) and not always_of_the_batch(layer):
            norms[path] = layer
        if isinstance(layer, nn.Embedding) and layer._sparse:
            sparse = path
        for key, generator in _generators(layer).items():
            generators[_join(path, key)] = generator
    tensors = [entry.tensor for entry in parameters if entry.tensor is not None]
    half = next((tensor for tensor in tensors if is_half(tensor) and not tensor.stop_gradient), None)
    know(tensors)
    token = _token(list(found.values()), lazy, unbuilt, sparse, half)
    return Structure(tuple(parameters), tuple(buffers), tuple(pending), norms, generators, token)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key

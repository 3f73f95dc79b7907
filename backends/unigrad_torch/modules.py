"""The tree of modules: paths, roles, lazy layers, wrappers, and whether any of it has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, ValuesView
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.rnn import RNNBase, RNNCellBase
from torch.nn.parameter import is_lazy

from unigrad.errors import UnsupportedError
from unigrad.protocols import Entry, Structure
from unigrad_torch.sharded import twins

_ROLES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (nn.Linear, "dense"),
    (_ConvTransposeNd, "transposed conv"),
    (_ConvNd, "conv"),
    ((nn.Embedding, nn.EmbeddingBag), "embedding"),
    ((_NormBase, _BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm), "norm"),
    ((RNNBase, RNNCellBase), "recurrent"),
)

_DICT = attrgetter("__dict__")
_flat = chain.from_iterable


def inner(model: Any) -> tuple[Any, str]:
    """Return the module inside wrappers that change nothing, and the prefix they put before its native names."""
    prefix = ""
    while True:
        name = wrapper(model)
        if name is None:
            return model, prefix
        model = model._modules[name]
        prefix += f"{name}."


def wrapper(model: Any) -> str | None:
    """Name of the child that a wrapper wraps, None for a module that is no wrapper."""
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "module"
    if is_compiled(model):
        return "_orig_mod"
    if is_fsdp(model):
        return "_fsdp_wrapped_module"
    return None


def is_compiled(model: Any) -> bool:
    """Whether the module is the wrapper that torch.compile makes of one."""
    # looked up, not imported, here and below: it costs a second and tens of megabytes, and no instance exists before
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(model, dynamo.OptimizedModule)


def is_fsdp(model: Any) -> bool:
    """Whether the module is the wrapper of the first generation of FSDP."""
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    return fsdp is not None and isinstance(model, fsdp.FullyShardedDataParallel)


def layers(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield structural path, native path and module of every place in the tree, wrappers looked through."""
    stack: list[tuple[str, str, Any, frozenset[int]]] = [("", "", model, frozenset())]
    while stack:
        path, native, module, above = stack.pop()
        module, prefix = inner(module)
        native = f"{native}.{prefix[:-1]}".lstrip(".") if prefix else native
        if id(module) in above:  # a module that holds itself
            continue
        yield path, native, module
        above = above | {id(module)}
        for name, child in reversed(module._modules.items()):
            if child is not None:
                stack.append((f"{path}.{name}" if path else name, f"{native}.{name}" if native else name, child, above))


def _role(module: Any) -> str:
    return next((role for kinds, role in _ROLES if isinstance(module, kinds)), "other")


def _keeps_statistics(module: Any) -> bool:
    if isinstance(module, _NormBase):
        return bool(module.track_running_stats) and module.running_mean is not None
    return module._buffers.get("running_mean") is not None and module._buffers.get("running_var") is not None


def _generators(module: Any) -> dict[str, Any]:
    # not isinstance: it costs a microsecond for each attribute, as the metaclass of Generator answers it in Python
    return {key: value for key, value in vars(module).items() if torch.Generator in type(value).__mro__}


@dataclass(slots=True)
class Token:
    """What ``unchanged`` compares: the dictionaries of all modules and what they held.

    ``served`` is what :func:`unigrad_torch.engine.engine` has found in the same tree; None before it looked.
    """

    modules: list[Any]
    rows: list[tuple[Any, dict[str, Any], dict[str, Any], dict[str, Any]]]
    empty: list[dict[str, Any]]
    filled: list[dict[str, Any]]
    keys: list[tuple[str, ...]]
    views: list[ValuesView[Any]]
    values: list[Any]
    attributes: list[int]
    generators: list[tuple[dict[str, Any], str, Any]]
    lazy: list[Any]
    served: Any = None


def _token(modules: list[Any]) -> Token:
    rows = [(module, module._parameters, module._buffers, module._modules) for module in modules]
    held = [found for _, *three in rows for found in three]
    filled = [found for found in held if found]
    views = [found.values() for found in filled]  # they follow their dictionaries
    values = list(_flat(views))
    return Token(
        modules,
        rows,
        [found for found in held if not found],
        filled,
        list(map(tuple, filled)),
        views,
        values,
        list(map(len, map(_DICT, modules))),
        _all_generators(modules),
        [tensor for tensor in values if is_lazy(tensor)],
    )


def _all_generators(modules: list[Any]) -> list[tuple[dict[str, Any], str, Any]]:
    return [(vars(module), key, generator) for module in modules for key, generator in _generators(module).items()]


def unchanged(model: Any, known: Structure) -> bool:
    """Whether the module still is what ``known`` describes.

    Every collector asks this when it opens, so it is made of passes at the speed of C over the dictionaries of all layers.
    """
    token = known.token
    if token.modules[0] is not model:
        return False
    for module, parameters, buffers, children in token.rows:
        if module._parameters is not parameters or module._buffers is not buffers or module._modules is not children:
            return False
    if (
        any(token.empty)
        or list(map(tuple, token.filled)) != token.keys
        or not all(map(is_, _flat(token.views), token.values))
    ):
        return False
    if token.lazy and not all(map(is_lazy, token.lazy)):
        return False
    attributes = list(map(len, map(_DICT, token.modules)))
    if attributes != token.attributes:
        if len(_all_generators(token.modules)) != len(token.generators):
            return False
        token.attributes = attributes
    return not token.generators or all(found.get(key) is generator for found, key, generator in token.generators)


def describe(model: Any) -> Structure:
    """Describe the module anew."""
    parameters: list[Entry] = []
    buffers: list[Entry] = []
    pending: list[str] = []
    norms: dict[str, Any] = {}
    generators: dict[str, Any] = {}
    modules: dict[int, Any] = {}
    whole = twins()
    for path, native, module in layers(model):
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"{repr(path) if path else 'the model'} is a TorchScript module, in which no use of a parameter can be seen and no "
                "buffer exchanged; wrap the module that was scripted"
            )
        modules[id(module)] = module
        role = _role(module)
        lazy = False
        for held, entries in ((module._parameters, parameters), (module._buffers, buffers)):
            for key, tensor in held.items():
                if tensor is None and held is module._parameters:
                    continue
                tensor = whole.get(id(tensor), tensor)
                absent = tensor is not None and is_lazy(tensor)
                lazy = lazy or absent
                name, own = (f"{place}.{key}" if place else key for place in (path, native))
                entries.append(Entry(name, own, None if absent else tensor, role, path, module, key))
        if lazy:
            pending.append(path)
        if _keeps_statistics(module):
            norms[path] = module
        for key, generator in _generators(module).items():
            generators[f"{path}.{key}" if path else key] = generator
    return Structure(
        tuple(parameters), tuple(buffers), tuple(pending), norms, generators, _token(list(modules.values()))
    )

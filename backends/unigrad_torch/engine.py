"""Which engine serves a model; what neither can serve is refused by name.

The pure engine asks torch for gradients and writes none. The native one runs ``.backward()``, for what hangs on the accumulation of
gradients: DistributedDataParallel, fully_shard, sharded parameters, and hooks that run after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from unigrad.errors import UnsupportedError
from unigrad.protocols import Structure
from unigrad_torch import reducers
from unigrad_torch.arrays import unseen
from unigrad_torch.modules import is_fsdp
from unigrad_torch.sharded import is_fully_sharded, is_sharded, originals, require_known
from unigrad_torch.transforms import refuse_transformed

_plain: set[type] = set()
_mappings: WeakValueDictionary[int, Structure] = WeakValueDictionary()
"""Structures without a model whose wrappers were searched for."""
_HOOKS = attrgetter("_post_accumulate_grad_hooks")


def engine(model: Any, structure: Structure) -> str:
    """Name of the engine that serves this (not unwrapped) model; ``UnsupportedError`` for what it cannot serve.

    The tree is walked once for each structure; what can change without the structure is looked at each time.
    """
    refuse_transformed("a collector")
    if model is None:
        if id(structure) not in _mappings:
            reducers.search()
            _mappings[id(structure)] = structure
        parameters = [entry.tensor for entry in structure.parameters]
        return "native" if _need_native(parameters) else "pure"
    token = structure.token
    known = token.served
    if known is None or known.generation != reducers.generation() or not _plain.issuperset(map(type, known.modules)):
        if known is None:
            reducers.search()
        known = token.served = _Served(model)
    return "native" if known.native or any(map(_HOOKS, known.parameters)) else "pure"


class _Served:
    """What a walk over all modules, wrappers included, has found."""

    __slots__ = ("generation", "modules", "native", "parameters")

    def __init__(self, model: Any) -> None:
        self.modules = [model]
        self.parameters: list[Any] = []
        self.native = False
        seen = {id(model)}
        for module in self.modules:  # which grows meanwhile
            reducers.note(module)
            if type(module) not in _plain:
                self._look_at(module)
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    _refuse_hidden_hooks(name, parameter)
                    self.parameters.append(parameter)
            for child in module._modules.values():
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    self.modules.append(child)
        self.generation = reducers.generation()
        self.native = self.native or _need_native(originals(self.parameters))

    def _look_at(self, module: Any) -> None:
        if is_fsdp(module):
            raise UnsupportedError(
                "the model is in FullyShardedDataParallel, whose flat parameters have no gradients of their own; give it to "
                "fully_shard instead"
            )
        if is_fully_sharded(module):
            require_known(module)
            self.native = True
        else:
            _plain.add(type(module))


def _refuse_hidden_hooks(name: str, parameter: Any) -> None:
    """Raise for hooks on the node that accumulates the gradient, as some libraries for several processes put them there.

    The pure engine would not run them. The native one would, but what they began, such as a reduction, may go on after the backward.
    """
    if not parameter.requires_grad or not parameter.is_leaf or is_lazy(parameter) or parameter.is_inference():
        return
    with torch.inference_mode(False), unseen():  # torch makes a view to get there, which is no use of the parameter
        node = get_gradient_edge(parameter).node
    for register in (node.register_hook, node.register_prehook):
        handle = register(lambda *gradients: None)
        hooks = handle.hooks_dict_ref()
        known = len(hooks) if hooks is not None else 1
        handle.remove()
        if known > 1:
            raise UnsupportedError(
                f"the node that accumulates the gradient of the parameter {name!r} has a hook, of which it can't be told when its work is "
                "done; use DistributedDataParallel, or register_post_accumulate_grad_hook on the parameter"
            )


def _need_native(parameters: Iterable[Any]) -> bool:
    parameters = list(parameters)
    wrappers = reducers.wrappers_of(parameters)
    for wrapper in wrappers:
        reducers.check(wrapper)
    return (
        bool(wrappers)
        or any(map(_HOOKS, parameters))
        or any(type(parameter) is not Parameter and is_sharded(parameter) for parameter in parameters)
    )

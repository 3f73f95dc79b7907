"""Which engine serves a model; what the pure engine cannot serve is refused by name."""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any, NoReturn

from torch import nn
from torch.nn import Parameter

from unigrad.errors import UnsupportedError
from unigrad.protocols import Structure
from unigrad_torch.modules import is_fsdp

_plain: set[type] = set()
_HOOKS = attrgetter("_post_accumulate_grad_hooks")


def engine(model: Any, structure: Structure) -> str:
    """Name of the engine that serves this (not unwrapped) model; ``UnsupportedError`` for what it cannot serve.

    The tree is walked once for each structure; what can change without the structure is looked at each time.
    """
    if model is None:
        return "pure"
    token = structure.token
    if token.served is not None:
        modules, parameters = token.served
        if _plain.issuperset(map(type, modules)) and not any(map(_HOOKS, parameters)):
            return "pure"
    token.served = _walk(model)
    return "pure"


def _walk(model: Any) -> tuple[list[Any], list[Any]]:
    """Return all modules, wrappers included, and their parameters; raise for what can't be served."""
    modules, seen = [model], {id(model)}
    parameters = []
    for module in modules:  # which grows meanwhile
        if type(module) not in _plain:
            _check_wrapper(module)
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if type(parameter) is not Parameter:
                _check_sharded(name, parameter)
            if parameter._post_accumulate_grad_hooks:
                _refuse(
                    f"the parameter {name!r} of {type(module).__name__} has a hook that runs after gradients are accumulated",
                    "the pure engine accumulates nothing into .grad, so the hook would never run",
                )
            parameters.append(parameter)
        for child in module._modules.values():
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                modules.append(child)
    return modules, parameters


def _check_wrapper(module: Any) -> None:
    if isinstance(module, nn.parallel.DistributedDataParallel):
        _refuse("the model is in DistributedDataParallel", "gradients of the pure engine would not be averaged")
    if is_fsdp(module):
        _refuse("the model is in FullyShardedDataParallel", "the pure engine does not see sharded parameters")
    fully_shard = sys.modules.get("torch.distributed.fsdp._fully_shard._fully_shard")
    if fully_shard is not None and isinstance(module, fully_shard.FSDPModule):
        _refuse("the model was given to fully_shard", "the pure engine does not see sharded parameters")
    _plain.add(type(module))


def _check_sharded(name: str, parameter: Any) -> None:
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(parameter, distributed.DTensor):
        _refuse(f"the parameter {name!r} is a DTensor", "the pure engine does not see sharded parameters")


def _refuse(what: str, why: str) -> NoReturn:
    raise UnsupportedError(f"{what}; {why}. The engine that serves this is not there yet")

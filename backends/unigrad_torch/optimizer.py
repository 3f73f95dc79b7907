"""Native optimizers: one step with given gradients, state only for what they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.optim import Optimizer

from unigrad.errors import ArgumentTypeError, UnsupportedError
from unigrad_torch.arrays import from_numpy

_factories: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()


def is_optimizer(obj: object) -> bool:
    """Whether ``obj`` is a ``torch.optim.Optimizer``."""
    return isinstance(obj, Optimizer)


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return the optimizer that ``factory`` makes for the list of parameters."""
    made = factory(list(parameters.values()))
    if not isinstance(made, Optimizer):
        raise ArgumentTypeError(
            f"the factory returned {type(made).__name__}, not a torch.optim.Optimizer; "
            "pass for example lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    if isinstance(made, torch.optim.LBFGS):
        raise UnsupportedError("LBFGS evaluates the loss several times in a step, which no collector can give it")
    _factories[made] = factory
    return made


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Make the optimizer serve more parameters, in the groups it has, so that schedules reach them too.

    The factory makes another optimizer for the new ones, whose state (Adagrad has one before its first step) is taken
    over. Settings are the present ones of the groups.
    """
    if not parameters:
        return
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    new = [parameter for parameter in parameters.values() if id(parameter) not in known]
    if not new:
        return
    factory = _factories.get(optimizer)
    if factory is None:
        optimizer.add_param_group({**_settings(optimizer.param_groups[0]), "params": new})
        return
    fresh = factory(new)
    fits = len(fresh.param_groups) == len(optimizer.param_groups)
    for index, group in enumerate(fresh.param_groups):
        if fits:
            optimizer.param_groups[index]["params"].extend(group["params"])
        else:
            optimizer.add_param_group({**_settings(optimizer.param_groups[0]), "params": group["params"]})
    for parameter, state in fresh.state.items():
        optimizer.state[parameter] = state


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step with the given gradients; parameters without one do not move; every ``.grad`` is as it was."""
    served = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [(parameter, parameter.grad) for parameter in served]
    try:
        for parameter in served:
            parameter.grad = None
        for parameter, gradient in gradients:
            parameter.grad = gradient
        optimizer.step()
    finally:
        for parameter, _ in gradients:
            parameter.grad = None
        for parameter, gradient in before:
            parameter.grad = gradient


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the state that the optimizer holds for one parameter."""
    return dict(optimizer.state.get(parameter, {}))


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``state_of`` returned; arrays become tensors on the device of the parameter."""
    group = next(group for group in optimizer.param_groups if any(parameter is served for served in group["params"]))
    made: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, np.ndarray | np.generic):
            value = from_numpy(value)
        if isinstance(value, torch.Tensor):
            # the count of steps stays on the CPU unless the optimizer computes with it on the device
            stays = name == "step" and not (group.get("capturable") or group.get("fused"))
            value = value.detach().clone().to("cpu" if stays else parameter.device)
        made[name] = value
    optimizer.state[parameter] = made

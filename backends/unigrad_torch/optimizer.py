"""Native optimizers: one step with given gradients, state only for what they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.optim import Optimizer

from unigrad.errors import ArgumentTypeError, StateMismatchError, UnsupportedError
from unigrad_torch.arrays import from_numpy
from unigrad_torch.sharded import is_sharded, spread
from unigrad_torch.tape import set_native_gradient

_made: WeakKeyDictionary[Any, tuple[Callable[..., Any], dict[int, dict[str, Any]]]] = WeakKeyDictionary()
"""Optimizer -> its factory, and by their number the groups of the factory's making, with the settings that it gave them."""


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
    _made[made] = (factory, dict(enumerate(map(_settings, made.param_groups))))
    return made


def served(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Make the optimizer serve more parameters.

    The factory makes another optimizer for the new ones. Each of its groups joins the group that the factory had made with the
    same settings, whatever a schedule has made of these since, or becomes a new one. State is taken over (Adagrad has
    one before its first step).
    """
    known = set(map(id, served(optimizer)))
    new = [parameter for parameter in parameters.values() if id(parameter) not in known]
    if not new:
        return
    factory, groups = _made[optimizer]
    fresh = factory(new)
    settings = [_settings(group) for group in fresh.param_groups]
    places = _places(optimizer, settings, groups, [bool(group["params"]) for group in fresh.param_groups])
    for group, own, index in zip(fresh.param_groups, settings, places, strict=True):
        if index is not None:
            optimizer.param_groups[index]["params"].extend(group["params"])
        elif group["params"]:
            groups[len(optimizer.param_groups)] = own
            optimizer.add_param_group({**own, "params": group["params"]})
    for parameter, state in fresh.state.items():
        optimizer.state[parameter] = state


def _places(
    optimizer: Any, fresh: Sequence[dict[str, Any]], groups: Mapping[int, dict[str, Any]], filled: Sequence[bool]
) -> list[int | None]:
    """Return for each new group the number of the group it belongs to; None for one that is new."""
    if len(fresh) == len(groups) and all(map(_same, fresh, groups.values())):
        return list(groups)  # the same groups again, which may have equal settings and schedules of their own
    places: list[int | None] = []
    for own, needed in zip(fresh, filled, strict=True):
        alike = [index for index, other in groups.items() if _same(own, other)]
        now = [_settings(optimizer.param_groups[index]) for index in alike]
        scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        if needed and scheduled and not (alike and all(_same(now[0], other) for other in now)):
            raise UnsupportedError(
                "parameters are used for the first time whose group "
                + ("can't be told from others with the same settings" if alike else "did not exist")
                + " when the learning-rate schedule was made, so they would not follow it; "
                "let the factory make the same groups each time, with empty lists where it is given none"
            )
        places.append(alike[0] if alike else None)
    return places


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name not in ("params", "param_names")
    }


def _same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(value, right[name])
        if isinstance(value, torch.Tensor) and isinstance(right[name], torch.Tensor)
        else type(value) is type(right[name]) and value == right[name]
        for name, value in left.items()
    )


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step with the given gradients; parameters without one do not move; every ``.grad`` is as it was."""
    places = {id(parameter): parameter for parameter, _ in gradients}
    places |= {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    before = [(parameter, parameter.grad) for parameter in places.values()]
    try:
        for parameter, _ in before:
            parameter.grad = None
        for parameter, gradient in gradients:
            set_native_gradient(parameter, gradient)
        optimizer.step()
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the state that the optimizer holds for one parameter; for None the numbers among the settings of its groups."""
    if parameter is not None:
        return dict(optimizer.state.get(parameter, {}))
    return {
        f"{index}.{name}": np.asarray(value) if isinstance(value, tuple) else value
        for index, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if _is_number(value) or (isinstance(value, tuple) and value and all(map(_is_number, value)))
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor | float | int) and not isinstance(value, bool)


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``state_of`` returned; arrays become tensors on the device of the parameter."""
    if parameter is None:
        _set_settings(optimizer, state)
        return
    group = next(group for group in optimizer.param_groups if any(parameter is served for served in group["params"]))
    made: dict[str, Any] = {}
    for name, value in state.items():
        if isinstance(value, np.ndarray | np.generic):
            value = from_numpy(value)
        if isinstance(value, torch.Tensor):
            if value.shape == parameter.shape and is_sharded(parameter) and not is_sharded(value):
                value = spread(value, parameter)
            # the count of steps stays on the CPU unless the optimizer computes with it on the device
            stays = name == "step" and not (group.get("capturable") or group.get("fused"))
            value = value.detach().clone().to("cpu" if stays else parameter.device)
        made[name] = value
    optimizer.state[parameter] = made


def _set_settings(optimizer: Any, state: Mapping[str, Any]) -> None:
    for entry, value in state.items():
        index, _, name = entry.partition(".")
        if not index.isdecimal() or int(index) >= len(optimizer.param_groups):
            raise StateMismatchError(
                f"the factory makes {len(optimizer.param_groups)} groups of settings, and the state has {entry!r}"
            )
        group = optimizer.param_groups[int(index)]
        if isinstance(group.get(name), torch.Tensor):
            group[name] = from_numpy(np.asarray(value)).to(group[name].device)
        elif isinstance(value, np.ndarray | np.generic):
            group[name] = tuple(value.tolist()) if np.ndim(value) else value.item()
        else:
            group[name] = value

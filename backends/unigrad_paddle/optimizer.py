"""Native optimizers: one step with given gradients, state only for what they serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import paddle
from paddle.optimizer import LBFGS, Optimizer

from unigrad.errors import ArgumentTypeError, StateMismatchError, UnsupportedError
from unigrad_paddle.arrays import from_numpy
from unigrad_paddle.framework import bump_version
from unigrad_paddle.tape import set_native_gradient, take

_factories: WeakKeyDictionary[Any, Callable[..., Any]] = WeakKeyDictionary()


def is_optimizer(obj: object) -> bool:
    """Whether ``obj`` is a ``paddle.optimizer.Optimizer``."""
    return isinstance(obj, Optimizer)


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return the optimizer that ``factory`` makes for the list of parameters."""
    made = factory(list(parameters.values()))
    if not isinstance(made, Optimizer):
        raise ArgumentTypeError(
            f"the factory returned {type(made).__name__}, not a paddle.optimizer.Optimizer; "
            "pass for example lambda parameters: paddle.optimizer.AdamW(1e-3, parameters=parameters)"
        )
    if isinstance(made, LBFGS):
        raise UnsupportedError("LBFGS evaluates the loss several times in a step, which no collector can give it")
    _factories[made] = factory
    return made


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Make the optimizer serve more parameters.

    The factory makes another optimizer for the new ones, whose groups join those of the same position.
    """
    known = set(map(id, served(optimizer)))
    new = [parameter for parameter in parameters.values() if id(parameter) not in known]
    if not new:
        return
    fresh = _factories[optimizer](new)
    if not _grouped(fresh) and not _grouped(optimizer):
        optimizer._parameter_list.extend(fresh._parameter_list)
        return
    if not _grouped(fresh) or not _grouped(optimizer) or len(fresh._param_groups) != len(optimizer._param_groups):
        raise UnsupportedError(
            "parameters are used for the first time, and the factory makes other groups for them than it made before; let it make "
            "the same groups each time, with empty lists where it is given none"
        )
    for group, more in zip(optimizer._param_groups, fresh._param_groups, strict=True):
        group["params"].extend(more["params"])


def _grouped(optimizer: Any) -> bool:
    groups = optimizer._param_groups
    return bool(groups) and isinstance(groups[0], dict)


def served(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups."""
    groups = optimizer._param_groups or ()
    return [one for group in groups for one in (group["params"] if isinstance(group, dict) else [group])]


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step with the given gradients; parameters without one do not move; every ``.grad`` is as it was."""
    places = {id(parameter): parameter for parameter, _ in gradients}
    places |= {id(parameter): parameter for parameter in served(optimizer)}
    before = [(parameter, take(parameter)) for parameter in places.values()]
    try:
        for parameter, gradient in gradients:
            if gradient is not None:
                set_native_gradient(parameter, gradient)
        optimizer.step()
        for parameter, gradient in gradients:
            if gradient is not None:
                bump_version(parameter)
    finally:
        for parameter, gradient in before:
            set_native_gradient(parameter, gradient)


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the state that the optimizer holds for one parameter; for None its learning rate and that of its schedule."""
    if parameter is None:
        schedule = optimizer._learning_rate
        if not isinstance(schedule, paddle.optimizer.lr.LRScheduler):
            return {"learning_rate": float(schedule)}
        return {name: held[key] for name, held, key in _entries(schedule.state_dict())}
    found = {name: held[parameter.name] for name, held in optimizer._accumulators.items() if parameter.name in held}
    master = getattr(optimizer, "_master_weights", {}).get(parameter.name)
    return found if master is None else found | {"master_weight": master}


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``state_of`` returned."""
    if parameter is None:
        _set_rates(optimizer, {name: np.asarray(value).item() for name, value in state.items()})
        return
    group = next(
        (
            {**group, "params": [parameter]}
            for group in optimizer._param_groups
            if isinstance(group, dict) and any(parameter is one for one in group["params"])
        ),
        [parameter],
    )
    # Paddle makes the state at the first step, with this function.
    optimizer._create_accumulators(paddle.static.default_main_program().global_block(), group)
    held = state_of(optimizer, parameter)
    if held.keys() != state.keys():
        raise StateMismatchError(
            f"the state has {', '.join(sorted(state)) or 'nothing'} for a parameter, the optimizer wants "
            f"{', '.join(sorted(held)) or 'nothing'}"
        )
    with paddle.no_grad():
        for name, value in state.items():
            tensor = from_numpy(value) if isinstance(value, np.ndarray | np.generic) else value
            held[name].set_value(tensor.reshape(held[name].shape).astype(held[name].dtype))


def _set_rates(optimizer: Any, state: dict[str, Any]) -> None:
    schedule = optimizer._learning_rate
    if isinstance(schedule, paddle.optimizer.lr.LRScheduler):
        whole = schedule.state_dict()
        for name, held, key in _entries(whole):
            if name not in state:
                raise StateMismatchError(f"the state has no {name!r}, which the schedule of the optimizer wants")
            held[key] = state[name]
        schedule.set_state_dict(whole)
    else:
        optimizer.set_lr(state["learning_rate"])


def _entries(state: dict[str, Any], prefix: str = "") -> list[tuple[str, dict[str, Any], str]]:
    """Name, dictionary and key of each number in the state of a schedule, which may hold that of another one."""
    found = []
    for key, value in state.items():
        if isinstance(value, dict):
            found += _entries(value, f"{prefix}{key}.")
        elif isinstance(value, bool | int | float):
            found.append((prefix + key, state, key))
    return found

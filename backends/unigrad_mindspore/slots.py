"""The state inside a native optimizer: what it keeps for each parameter, what its parameters share, and its settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor

from unigrad.errors import StateMismatchError
from unigrad_mindspore.arrays import clone, from_numpy, overwrite

__all__ = ["Slots", "read", "read_settings", "settings_from", "slots_of", "write", "write_settings"]

_SETTINGS = ("learning_rate", "momentum", "weight_decay")
_RATES = ("lrs", "group_lr")
"""Names of lists of rates, which are settings: one for each group, and a second name of ``learning_rate``."""


@dataclass(frozen=True)
class Slots:
    """State of a native optimizer.

    Parameters
    ----------
    each
        Name -> one tensor for each parameter, in the order of ``optimizer.parameters``.
    shared
        Name -> tensor that all of its parameters share, as the count of steps.
    """

    each: Mapping[str, Sequence[Any]]
    shared: Mapping[str, Any]


def slots_of(optimizer: Any) -> Slots:
    """Return the state of a native optimizer, the tensors themselves."""
    count, served = len(optimizer.parameters), set(map(id, optimizer.parameters))
    each = {
        name: value
        for name, value in vars(optimizer).items()
        # some keep state in a plain list (NAdam, ASGD), some hold the parameters under a second name (Momentum)
        if isinstance(value, ParameterTuple | list | tuple)
        and len(value) == count
        and name not in _RATES
        and all(isinstance(one, Parameter) and id(one) not in served for one in value)
    }
    known = {id(one) for one in (*optimizer.parameters, *(one for several in each.values() for one in several))}
    shared = {
        name: value
        for name, value in optimizer._params.items()
        if isinstance(value, Parameter) and id(value) not in known and not name.startswith(_SETTINGS)
    }
    return Slots(each, shared)


def _index(optimizer: Any, parameter: Any) -> int:
    return next(index for index, one in enumerate(optimizer.parameters) if one is parameter)


def read(optimizer: Any, parameter: Any) -> dict[str, Any]:
    """Return copies of the state of one parameter, with what it shares."""
    slots, index = slots_of(optimizer), _index(optimizer, parameter)
    own = {name: several[index] for name, several in slots.each.items()}
    return {name: _plain(value) for name, value in (own | dict(slots.shared)).items()}


def _plain(value: Any) -> Any:
    return from_numpy(value.asnumpy())


def write(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Write the state of one parameter, and what it shares."""
    slots, index = slots_of(optimizer), _index(optimizer, parameter)
    places = {name: several[index] for name, several in slots.each.items()} | dict(slots.shared)
    for name, value in state.items():
        if name in places:
            overwrite(places[name], _as_tensor(value))


def read_settings(optimizer: Any) -> dict[str, Any]:
    """Return the numbers among the settings, which a schedule or the user may change: copies of tensors, and Python's own."""
    found = {name: _plain(value) for name, value in _set_as_tensors(optimizer).items()}
    for index, group in enumerate(getattr(optimizer, "param_groups", ())):
        for name, value in group.items():
            if isinstance(value, Tensor):
                found[f"{index}.{name}"] = _plain(value)
            elif _is_number(value):
                found[f"{index}.{name}"] = value
            elif isinstance(value, tuple) and value and all(map(_is_number, value)):
                found[f"{index}.{name}"] = np.asarray(value)
    return found


def write_settings(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``read_settings`` returned, or arrays of it."""
    own, groups = _set_as_tensors(optimizer), getattr(optimizer, "param_groups", ())
    for entry, value in state.items():
        index, _, name = entry.partition(".")
        if entry in own:
            overwrite(own[entry], _as_tensor(value))
        elif not index.isdecimal() or int(index) >= len(groups):
            raise StateMismatchError(
                f"the state has the setting {entry!r}, and the optimizer that the factory makes has "
                f"{', '.join([*own, f'{len(groups)} groups'])}; the factory is to be the same"
            )
        else:
            _set(groups[int(index)], name, value)


def _set(group: dict[str, Any], name: str, value: Any) -> None:
    held = group.get(name)
    if isinstance(held, Parameter):
        overwrite(held, _as_tensor(value))
    elif isinstance(held, Tensor):
        group[name] = _as_tensor(value)
    elif isinstance(value, np.ndarray | np.generic):
        group[name] = tuple(value.tolist()) if np.ndim(value) else value.item()
    else:
        group[name] = value


def _set_as_tensors(optimizer: Any) -> dict[str, Any]:
    """Return the settings of an optimizer of ``mindspore.nn``, for all its parameters alike, that can be written."""
    return {
        name: value
        for name in _SETTINGS
        if isinstance(value := optimizer._params.get(name), Parameter)
        and all(value is not one for one in optimizer.parameters)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _as_tensor(value: Any) -> Any:
    return clone(value) if isinstance(value, Tensor) else from_numpy(np.asarray(value))


def settings_from(first: Any, other: Any) -> None:
    """Give an optimizer the settings of the one that the user sees, who may have changed them since."""
    if other is first:
        return
    own = _set_as_tensors(other)
    for name, value in _set_as_tensors(first).items():
        if name in own:
            overwrite(own[name], value)
    groups, mine = getattr(first, "param_groups", None), getattr(other, "param_groups", None)
    if groups is None or mine is None or len(groups) != len(mine):
        return
    for group, theirs in zip(mine, groups, strict=True):
        for name, value in theirs.items():
            if name == "lr" and isinstance(value, Parameter) and isinstance(group[name], Parameter):
                overwrite(group[name], value)
            elif name != "params":
                group[name] = value

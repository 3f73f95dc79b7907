"""The state inside a native optimizer: what it keeps for each parameter, and what its parameters share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor

from unigrad_mindspore.arrays import clone, from_numpy, overwrite

__all__ = ["Slots", "read", "settings_from", "slots_of", "write"]

_SETTINGS = ("learning_rate", "momentum", "weight_decay")
_SERVED = ("parameters", "_parameters")


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
    count = len(optimizer.parameters)
    each = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in _SERVED and isinstance(value, ParameterTuple) and len(value) == count
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
            made = clone(value) if isinstance(value, Tensor) else from_numpy(np.asarray(value))
            overwrite(places[name], made)


def settings_from(first: Any, other: Any) -> None:
    """Give an optimizer the settings of the one that the user sees, who may have changed them since."""
    if other is first:
        return
    rate = first._params.get("learning_rate")
    if rate is not None and "learning_rate" in other._params:
        overwrite(other._params["learning_rate"], rate)
    groups, own = getattr(first, "param_groups", None), getattr(other, "param_groups", None)
    if groups is None or own is None or len(groups) != len(own):
        return
    for mine, theirs in zip(own, groups, strict=True):
        for name, value in theirs.items():
            if name == "lr" and isinstance(value, Parameter) and isinstance(mine[name], Parameter):
                overwrite(mine[name], value)
            elif name != "params":
                mine[name] = value

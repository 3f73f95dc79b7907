"""The state inside an optimizer of Keras: what it keeps for each parameter, and what belongs to no single one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad.errors import StateMismatchError
from unigrad_tensorflow.arrays import is_variable, value
from unigrad_tensorflow.private import raw

__all__ = ["each", "fill", "inner", "numbers", "read", "together", "write"]

_LISTS = ("_variables", "_trainable_variables")
"""Attributes that hold variables of all kinds, or the parameters."""


def inner(optimizer: Any) -> list[tuple[str, Any]]:
    """Return the optimizers that one is made of, as ``LossScaleOptimizer`` and ``MultiOptimizer`` are, by what their names begin with."""
    found = []
    for name, held in vars(optimizer).items():
        several = held if isinstance(held, list | tuple) else [held]
        for index, one in enumerate(several):
            if isinstance(one, keras.optimizers.Optimizer):
                place = name.strip("_") + (f".{index}." if several is held else ".")
                found += [(place, one), *((place + rest, other) for rest, other in inner(one))]
    return found


def _parts(optimizer: Any) -> list[tuple[str, Any]]:
    return [("", optimizer), *inner(optimizer)]


def each(optimizer: Any, parameter: Any) -> dict[str, Any]:
    """Return the variables that belong to one parameter, by what they are."""
    found: dict[str, Any] = {}
    for place, part in _parts(optimizer):
        served = part._trainable_variables
        index = next((index for index, one in enumerate(served) if one is parameter), None)
        if index is None:
            continue
        for name, held in vars(part).items():
            if name in _LISTS or not isinstance(held, list) or len(held) != len(served):
                continue
            if is_variable(held[index]):
                found[place + _singular(name.strip("_"))] = held[index]
    return found


def _singular(name: str) -> str:
    return f"{name[:-3]}y" if name.endswith("ies") else name.rstrip("s")


def together(optimizer: Any, parameters: Collection[Any]) -> dict[str, Any]:
    """Return all other variables: the count of steps, the rate, products of rates, scales of a loss, and what is kept in another form."""
    known = {id(slot) for parameter in parameters for slot in (parameter, *each(optimizer, parameter).values())}
    found: dict[str, Any] = {}
    for place, part in _parts(optimizer):
        for name, held in vars(part).items():
            if is_variable(held) and id(held) not in known:
                known.add(id(held))
                found[place + name.strip("_")] = held
    rest = [variable for variable in optimizer.variables if id(variable) not in known]
    return found | {f"variable.{index}": variable for index, variable in enumerate(rest)}


def numbers(optimizer: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """Yield place, owner, name and value of each number among the public settings, which a program may change from step to step."""
    for place, part in _parts(optimizer):
        for name, held in vars(part).items():
            if isinstance(held, bool | int | float) and not name.startswith("_") and name != "built":
                yield place, part, name, held


def read(optimizer: Any, parameters: Collection[Any]) -> dict[str, Any]:
    """Return all that belongs to no single parameter."""
    found = {name: value(variable) for name, variable in together(optimizer, parameters).items()}
    return found | {place + name: number for place, _, name, number in numbers(optimizer)}


def write(optimizer: Any, parameters: Collection[Any], state: Mapping[str, Any]) -> None:
    """Put back what :func:`read` returned; ``StateMismatchError`` if the optimizer is of another make."""
    variables = together(optimizer, parameters)
    named = list(numbers(optimizer))
    fill(variables, state, {place + name for place, _, name, _ in named})
    for place, part, name, _ in named:
        setattr(part, name, np.asarray(state[place + name]).item())


def fill(variables: Mapping[str, Any], state: Mapping[str, Any], others: Collection[str] = ()) -> None:
    """Assign values by name; ``StateMismatchError`` if the names differ."""
    wanted = {*variables, *others}
    if wanted != set(state):
        differing = ", ".join(sorted(wanted.symmetric_difference(state)))
        raise StateMismatchError(
            f"the saved optimizer was made with other settings than the factory's: only one of both has {differing}; nothing was changed"
        )
    for name, variable in variables.items():
        item = state[name]
        raw(variable).assign(item if tf.is_tensor(item) else np.asarray(item))

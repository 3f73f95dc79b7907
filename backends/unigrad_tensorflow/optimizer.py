"""Apply gradients with the optimizers of Keras; state only for what is registered. See ``unigrad.protocols.OptimizerModule``.

An optimizer of Keras serves the variables that it was built with, for good. What is registered later gets a second one from the same
factory, which follows the rate of the first; its count of steps, and so its correction of early moments, begins with those variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from unigrad.errors import ArgumentTypeError
from unigrad_tensorflow.arrays import value
from unigrad_tensorflow.private import raw, stop_recording

__all__ = ["create", "extend", "is_optimizer", "served", "set_state_of", "state_of", "step"]


class _Group:
    """One optimizer of Keras and what it serves."""

    def __init__(self, optimizer: Any, parameters: Sequence[Any]) -> None:
        self.optimizer = optimizer
        self.served = {id(parameter): parameter for parameter in parameters}
        before = {id(variable) for variable in optimizer.variables} if not optimizer.built else None
        if not optimizer.built:
            optimizer.build(list(parameters))
        common = before if before is not None else {id(optimizer.iterations), id(raw_rate(optimizer))}
        slots = [variable for variable in optimizer.variables if id(variable) not in common]
        self.slots = slots

    def slots_of(self, parameter: Any) -> dict[str, Any]:
        """Return the slots of one parameter, by what they are."""
        plain = self.optimizer
        index = plain._get_variable_index(parameter)
        found: dict[str, Any] = {}
        for name, held in vars(plain).items():
            if isinstance(held, list) and len(held) == len(self.served) and held and name != "_trainable_variables":
                slot = held[index]
                if isinstance(slot, keras.Variable) and any(slot is one for one in self.slots):
                    found[_singular(name.strip("_"))] = slot
        return found


def _singular(name: str) -> str:
    return f"{name[:-3]}y" if name.endswith("ies") else name.rstrip("s")


def raw_rate(optimizer: Any) -> Any:
    """Return the variable of the rate, or the schedule in its place."""
    return vars(optimizer).get("_learning_rate")


class _Made:
    """A factory and the optimizers that it made for one ``unigrad.Optimizer``."""

    def __init__(self, factory: Callable[..., Any], first: _Group) -> None:
        self.factory = factory
        self.groups = [first]

    def group_of(self, parameter: Any) -> _Group | None:
        """Return the group that serves a parameter."""
        return next((group for group in self.groups if id(parameter) in group.served), None)


_made: WeakKeyDictionary[Any, _Made] = WeakKeyDictionary()


def is_optimizer(obj: object) -> bool:
    """Whether ``obj`` is an optimizer of Keras."""
    return isinstance(obj, keras.optimizers.Optimizer)


def _make(factory: Callable[..., Any], parameters: Sequence[Any]) -> Any:
    made = factory(list(parameters))
    if not is_optimizer(made):
        raise ArgumentTypeError(
            f"the factory returned a {type(made).__name__}, not a keras.optimizers.Optimizer; "
            "pass for example lambda parameters: keras.optimizers.AdamW(1e-3)"
        )
    return made


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return the optimizer that ``factory`` makes, built for the parameters."""
    given = list(parameters.values())
    made = _make(factory, given)
    _made[made] = _Made(factory, _Group(made, given))
    return made


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Serve more parameters, by a further optimizer of the same factory."""
    made = _made[optimizer]
    new = [parameter for parameter in parameters.values() if made.group_of(parameter) is None]
    if new:
        made.groups.append(_Group(_make(made.factory, new), new))


def served(optimizer: Any) -> list[Any]:
    """Return the parameters that it and the further ones of its factory are given; Keras' optimizers are made without any."""
    return [parameter for group in _made[optimizer].groups for parameter in group.served.values()]


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step; Keras leaves a variable without a gradient alone, if it is not given to it."""
    made = _made[optimizer]
    with stop_recording():
        for group in made.groups:
            pairs = [(gradient, parameter) for parameter, gradient in gradients if id(parameter) in group.served]
            pairs = [(gradient, parameter) for gradient, parameter in pairs if gradient is not None]
            if not pairs:
                continue
            if group.optimizer is not optimizer and isinstance(raw_rate(group.optimizer), keras.Variable):
                group.optimizer.learning_rate = optimizer.learning_rate
            group.optimizer.apply([gradient for gradient, _ in pairs], [parameter for _, parameter in pairs])


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the slots of one parameter, and the count of steps where there are any; for None the rate."""
    if parameter is None:
        rate = raw_rate(optimizer)
        return {"learning_rate": float(rate.numpy())} if isinstance(rate, keras.Variable) else {}
    group = _made[optimizer].group_of(parameter)
    if group is None:
        return {}
    found = {name: value(slot) for name, slot in group.slots_of(parameter).items()}
    if found:
        found["step"] = int(group.optimizer.iterations.numpy())
    return found


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``state_of`` returned."""
    if parameter is None:
        if "learning_rate" in state:
            optimizer.learning_rate = float(state["learning_rate"])
        return
    group = _made[optimizer].group_of(parameter)
    assert group is not None  # the core asks for what it has given
    slots = group.slots_of(parameter)
    for name, item in state.items():
        if name == "step":
            group.optimizer.iterations.assign(int(item))
        else:
            raw(slots[name]).assign(item if tf.is_tensor(item) else np.asarray(item))

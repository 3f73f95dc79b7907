"""Apply gradients with the optimizers of Keras; state only for what is registered. See ``unigrad.protocols.OptimizerModule``.

An optimizer of Keras serves the variables that it was built with, for good. What is registered later gets a second one from the same
factory, which follows the rate and the settings of the first; its count of steps, and so its correction of early moments, begins with
those variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from unigrad.errors import ArgumentTypeError, UnsupportedError
from unigrad_tensorflow.arrays import value
from unigrad_tensorflow.private import raw, stop_recording
from unigrad_tensorflow.slots import each, fill, inner, numbers, read, together, write

__all__ = ["create", "extend", "is_optimizer", "served", "set_state_of", "state_of", "step"]


class _Group:
    """One optimizer of Keras and what it serves."""

    def __init__(self, optimizer: Any, parameters: Sequence[Any]) -> None:
        self.optimizer = optimizer
        self.served = {id(parameter): parameter for parameter in parameters}
        if not optimizer.built:
            optimizer.build(list(parameters))


class _Follower(_Group):
    """A further one, whose rate and settings are those of the first, also what a schedule or the program makes of them later."""

    def __init__(self, optimizer: Any, parameters: Sequence[Any]) -> None:
        super().__init__(optimizer, parameters)
        self.rate = rate = keras.Variable(0.0, trainable=False, name="rate")
        optimizer.learning_rate = lambda: raw(rate)

    def follow(self, first: Any) -> None:
        """Take over what the first optimizer is about to step with."""
        raw(self.rate).assign(tf.cast(tf.convert_to_tensor(first.learning_rate), self.rate.dtype))
        for name in {name for one in (first, self.optimizer) for _, _, name, _ in numbers(one)}:
            setattr(self.optimizer, name, getattr(first, name))


class _Made:
    """A factory and the optimizers that it made for one ``unigrad.Optimizer``."""

    def __init__(self, factory: Callable[..., Any], first: _Group) -> None:
        self.factory = factory
        self.groups: list[_Group] = [first]

    def group_of(self, parameter: Any) -> _Group | None:
        """Return the group that serves a parameter."""
        return next((group for group in self.groups if id(parameter) in group.served), None)

    def further(self) -> list[tuple[str, _Group]]:
        """Return all groups but the first, by what the names of their state begin with."""
        return [(f"{index}.", group) for index, group in enumerate(self.groups) if index]


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
    if not new:
        return
    what = _over_all(optimizer)
    if what is not None:
        raise UnsupportedError(
            f"{', '.join(parameters)} came into use after the first step, and {what}; nothing was moved. Let the first step reach all "
            "parameters, or make a new Optimizer"
        )
    made.groups.append(_Follower(_make(made.factory, new), new))


def _over_all(optimizer: Any) -> str | None:
    """Say what an optimizer does over all its parameters together, which two can't do; None for nothing."""
    if inner(optimizer):
        return f"{type(optimizer).__name__} can't be extended: its inner optimizers serve what they were built with"
    if optimizer.global_clipnorm:
        return "global_clipnorm takes one norm of the parameters that it was built with; use collector.clip_by_global_norm instead"
    if optimizer.gradient_accumulation_steps:
        return (
            "gradient_accumulation_steps would count their steps from another start; accumulate in a collector instead"
        )
    return None


def served(optimizer: Any) -> list[Any]:
    """Return the parameters that it and the further ones of its factory are given; Keras' optimizers are made without any."""
    return [parameter for group in _made[optimizer].groups for parameter in group.served.values()]


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step; Keras leaves a variable without a gradient alone, if it is not given to it."""
    made = _made[optimizer]
    given = [(gradient, parameter) for parameter, gradient in gradients if gradient is not None]
    with stop_recording():
        for group in made.groups[1:]:
            assert isinstance(group, _Follower)
            group.follow(optimizer)  # before the first steps, whose count moves on then
        for group in made.groups:
            pairs = [(gradient, parameter) for gradient, parameter in given if id(parameter) in group.served]
            if pairs:
                group.optimizer.apply([gradient for gradient, _ in pairs], [parameter for _, parameter in pairs])
            elif given and group.optimizer is optimizer and not isinstance(optimizer.learning_rate, keras.Variable):
                optimizer.iterations.assign_add(1)  # a schedule counts the steps of all parameters


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return the slots of one parameter; for None rate, counts of steps, settings, and all that is no slot of one parameter."""
    made = _made[optimizer]
    if parameter is not None:
        group = made.group_of(parameter)
        return {} if group is None else {name: value(slot) for name, slot in each(group.optimizer, parameter).items()}
    found = read(optimizer, made.groups[0].served.values())
    for place, group in made.further():
        variables = together(group.optimizer, group.served.values())
        found |= {place + name: value(variable) for name, variable in variables.items()}
    return found


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``state_of`` returned."""
    made = _made[optimizer]
    if parameter is not None:
        group = made.group_of(parameter)
        assert group is not None  # the core asks for what it has given
        fill(each(group.optimizer, parameter), state)
        return
    rest = dict(state)
    for place, group in made.further():
        mine = {name: rest.pop(name) for name in state if name.startswith(place)}
        variables = together(group.optimizer, group.served.values())
        fill({place + name: variable for name, variable in variables.items()}, mine)
    write(optimizer, made.groups[0].served.values(), rest)

"""Apply gradients; state only for what is registered. See ``unigrad.protocols.OptimizerModule``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unigrad_numpy.optim import Optimizer
from unigrad_numpy.tensor import Tensor

__all__ = ["create", "extend", "is_optimizer", "served", "set_state_of", "state_of", "step"]


def is_optimizer(obj: object) -> bool:
    """Whether ``obj`` is an optimizer of ``unigrad_numpy.optim``."""
    return isinstance(obj, Optimizer)


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return the optimizer that ``factory`` makes for the list of parameters."""
    return factory(list(parameters.values()))


def served(optimizer: Any) -> list[Any]:
    """Return the parameters."""
    return list(optimizer.parameters)


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Make the optimizer serve more parameters."""
    optimizer.add_parameters(parameters.values())


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step; ``grad`` of every parameter is afterwards as it was."""
    given = {id(parameter): gradient for parameter, gradient in gradients}
    before = [(parameter, parameter.grad) for parameter in optimizer.parameters]
    try:
        for parameter, _ in before:
            parameter.grad = given.get(id(parameter))
        optimizer.step()
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return a copy of the state of one parameter, arrays as tensors; for None the numbers that the optimizer is set to."""
    if parameter is None:
        return {name: value for name, value in vars(optimizer).items() if isinstance(value, float)}
    state = optimizer.state.get(parameter, {})
    return {name: Tensor(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back a copy of what ``state_of`` returned."""
    if parameter is None:
        vars(optimizer).update({name: float(value) for name, value in state.items()})
        return
    optimizer.state[parameter] = {name: _plain(value, name) for name, value in state.items()}


def _plain(value: Any, name: str) -> Any:
    array = value.numpy() if isinstance(value, Tensor) else value
    if name == "step":
        return int(array)
    return np.array(array) if isinstance(array, np.ndarray) else array

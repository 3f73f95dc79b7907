"""Steps of toygrad's optimizers on given gradients. See ``unigrad.protocols.OptimizerModule``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from toygrad import Tensor
from toygrad.optimizers import Optimizer


def is_optimizer(obj: object) -> bool:
    return isinstance(obj, Optimizer)


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return factory(list(parameters.values()))


def served(optimizer: Any) -> list[Any]:
    return list(optimizer.parameters)


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    optimizer.parameters.extend(parameters.values())


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    before = [(parameter, parameter.grad) for parameter in optimizer.parameters]
    given = {id(parameter): gradient for parameter, gradient in gradients}
    try:
        for parameter in optimizer.parameters:
            parameter.grad = given.get(id(parameter))
        optimizer.step()
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    kept = optimizer.memory.get(parameter, {})
    return {name: Tensor(value) if isinstance(value, np.ndarray) else value for name, value in kept.items()}


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    optimizer.memory.pop(parameter, None)
    if state:
        optimizer.memory[parameter] = {name: _plain(value) for name, value in state.items()}


def _plain(value: Any) -> Any:
    value = value.data if isinstance(value, Tensor) else value
    return np.array(value) if isinstance(value, np.ndarray) else value

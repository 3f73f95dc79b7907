"""Steps of toygrad's optimizer on given gradients. See ``unigrad.protocols.OptimizerModule``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from toygrad import SGD


def is_optimizer(obj: object) -> bool:
    return isinstance(obj, SGD)


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return factory(list(parameters.values()))


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    optimizer.parameters.extend(parameters.values())


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    before = [(p, p.grad) for p in optimizer.parameters]
    given = {id(p): gradient for p, gradient in gradients}
    try:
        for p in optimizer.parameters:
            p.grad = given.get(id(p))
        optimizer.step()
    finally:
        for p, gradient in before:
            p.grad = gradient


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    velocity = optimizer.velocity.get(id(parameter))
    return {} if velocity is None else {"velocity": velocity}


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    optimizer.velocity.pop(id(parameter), None)
    if state:
        optimizer.velocity[id(parameter)] = np.array(state["velocity"])

"""Optimizers: they move parameters that hold a gradient, and keep state for no other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from toygrad.tensor import Parameter


class Optimizer:
    """Steps over a list of parameters; ``memory`` holds the arrays and numbers kept for each, by name."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self.parameters = list(parameters)
        self.memory: dict[Parameter, dict[str, Any]] = {}

    def step(self) -> None:
        """Move each parameter that holds a gradient."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                self.move(parameter, parameter.grad.data, self.memory.setdefault(parameter, {}))

    def move(self, parameter: Parameter, gradient: Any, memory: dict[str, Any]) -> None:
        """Move one parameter; for subclasses to define."""
        raise NotImplementedError


class SGD(Optimizer):
    """Gradient descent with momentum, and weight decay as a part of the gradient."""

    def __init__(self, parameters: Iterable[Parameter], rate: float, momentum: float = 0.0, decay: float = 0.0) -> None:
        super().__init__(parameters)
        self.rate, self.momentum, self.decay = rate, momentum, decay

    def move(self, parameter: Parameter, gradient: Any, memory: dict[str, Any]) -> None:
        """Move one parameter."""
        if self.decay:
            gradient = gradient + self.decay * parameter.data
        if self.momentum:
            velocity = self.momentum * memory.get("velocity", 0.0) + gradient
            gradient = memory["velocity"] = np.asarray(velocity, gradient.dtype)
        parameter.write(parameter.data - self.rate * gradient)


class AdamW(Optimizer):
    """Adam with weight decay apart from the gradient.

    Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        rate: float,
        decay: float = 0.0,
        means: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(parameters)
        self.rate, self.decay, self.means, self.epsilon = rate, decay, means, epsilon

    def move(self, parameter: Parameter, gradient: Any, memory: dict[str, Any]) -> None:
        """Move one parameter."""
        count = memory["count"] = int(memory.get("count", 0)) + 1
        first = memory["first"] = _blend(memory.get("first", 0.0), gradient, self.means[0])
        second = memory["second"] = _blend(memory.get("second", 0.0), gradient * gradient, self.means[1])
        scale = np.sqrt(second / (1 - self.means[1] ** count)) + self.epsilon
        kept = parameter.data * (1 - self.rate * self.decay)
        parameter.write(kept - self.rate * (first / (1 - self.means[0] ** count)) / scale)


def _blend(old: Any, new: Any, share: float) -> Any:
    return np.asarray(share * old + (1 - share) * new, new.dtype)

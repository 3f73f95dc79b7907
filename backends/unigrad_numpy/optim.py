"""Optimizers: one step from the gradients that parameters hold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from unigrad_numpy.tensor import Tensor

__all__ = ["SGD", "AdamW", "Optimizer"]

Array = np.ndarray[Any, Any]


class Optimizer:
    """The parameters an optimizer serves and what it remembers of each.

    State of a parameter is made at its first step with a gradient; a parameter whose ``grad`` is None is left alone.

    Parameters
    ----------
    parameters
        Leaf tensors, each once.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters: list[Tensor] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.add_parameters(parameters)

    def add_parameters(self, parameters: Iterable[Tensor]) -> None:
        """Serve more parameters, with the same settings.

        Raises
        ------
        ValueError
            If one is served already or is no leaf; then none is added.
        """
        new = list(parameters)
        known = {id(parameter) for parameter in self.parameters}
        for parameter in new:
            if not isinstance(parameter, Tensor) or parameter.node is not None:
                raise ValueError("an optimizer serves leaf tensors")
            if id(parameter) in known:
                raise ValueError("a parameter is given twice, or is served by this optimizer already")
            known.add(id(parameter))
        self.parameters.extend(new)

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                state = self.state.setdefault(parameter, {})
                parameter.assign(self.update(parameter._array, parameter.grad._array, state))

    def update(self, value: Array, gradient: Array, state: dict[str, Any]) -> Array:
        """Return the new value of a parameter and bring ``state`` up to date; all in the parameter's dtype."""
        raise NotImplementedError


class SGD(Optimizer):
    """Stochastic gradient descent.

    Parameters
    ----------
    parameters
        Leaf tensors.
    lr
        Step size.
    momentum
        Part of the previous direction that is kept; the first direction is the gradient itself.
    weight_decay
        Multiple of the parameter that is added to the gradient.
    """

    def __init__(
        self, parameters: Iterable[Tensor], lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

    def update(self, value: Array, gradient: Array, state: dict[str, Any]) -> Array:
        """See :meth:`Optimizer.update`."""
        kind = value.dtype.type
        direction = gradient
        if self.weight_decay:
            direction = direction + value * kind(self.weight_decay)
        if self.momentum:
            before = state.get("momentum_buffer")
            direction = direction.copy() if before is None else before * kind(self.momentum) + direction
            state["momentum_buffer"] = np.asarray(direction)
        return np.asarray(value - kind(self.lr) * direction)


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    Parameters
    ----------
    parameters
        Leaf tensors.
    lr
        Step size.
    betas
        Part of the previous mean, and of the previous mean square, that is kept.
    eps
        Added to the root of the mean square.
    weight_decay
        Part of the parameter, times ``lr``, that is taken off at each step.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay

    def update(self, value: Array, gradient: Array, state: dict[str, Any]) -> Array:
        """See :meth:`Optimizer.update`."""
        kind = value.dtype.type
        first, second = self.betas
        if not state:
            state.update(step=0, exp_avg=np.zeros_like(value), exp_avg_sq=np.zeros_like(value))
        state["step"] += 1
        mean = state["exp_avg"] + (gradient - state["exp_avg"]) * kind(1 - first)
        square = state["exp_avg_sq"] * kind(second) + gradient * gradient * kind(1 - second)
        state["exp_avg"], state["exp_avg_sq"] = np.asarray(mean), np.asarray(square)
        size = kind(self.lr / (1 - first ** state["step"]))
        root = np.sqrt(square) / kind(math.sqrt(1 - second ** state["step"])) + kind(self.eps)
        return np.asarray(value * kind(1 - self.lr * self.weight_decay) - size * mean / root)

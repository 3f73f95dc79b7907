"""SGD and AdamW as formulas in float64, and the optimizers of a backend with the same settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import unigrad

__all__ = ["OPTIMIZERS", "Reference", "Settings", "values_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Settings:
    """One optimizer.

    Parameters
    ----------
    rate, momentum, decay
        Its settings.
    adaptive
        AdamW (betas 0.9 and 0.999, epsilon 1e-8), else SGD.
    """

    rate: float
    momentum: float = 0.0
    decay: float = 0.0
    adaptive: bool = False

    @property
    def has_state(self) -> bool:
        """Whether it keeps anything for a parameter."""
        return self.adaptive or self.momentum != 0

    def factory(self, samples: Any) -> Callable[..., Any]:
        """Return the factory of a backend's optimizer."""
        made: Callable[..., Any] = (
            samples.adamw(self.rate, self.decay) if self.adaptive else samples.sgd(self.rate, self.momentum, self.decay)
        )
        return made


OPTIMIZERS: Mapping[str, Settings] = {
    "sgd": Settings(0.125),
    "sgd-momentum-decay": Settings(0.125, momentum=0.875, decay=0.0625),
    "adamw": Settings(0.0625, decay=0.125, adaptive=True),
}
"""Optimizers under test by name; their settings are the same number in single precision, in which some frameworks hold them."""


class Reference:
    """The formulas, one parameter at a time; a parameter without a gradient is left alone.

    Parameters
    ----------
    settings
        The optimizer.
    values
        Start values by name.
    """

    def __init__(self, settings: Settings, values: Mapping[str, Array]) -> None:
        self.settings = settings
        self.values = {name: np.array(value, "float64") for name, value in values.items()}
        self._state: dict[str, tuple[int, Array, Array]] = {}

    def step(self, gradients: Mapping[str, Array]) -> None:
        """Do one step."""
        for name, gradient in gradients.items():
            count, first, second = self._state.get(name, (0, np.zeros(()), np.zeros(())))
            count += 1
            value = self.values[name]
            if self.settings.adaptive:
                value = value * (1 - self.settings.rate * self.settings.decay)
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                root = np.sqrt(second / (1 - 0.999**count)) + 1e-8
                direction = first / (1 - 0.9**count) / root
            else:
                direction = gradient + self.settings.decay * value
                first = direction if count == 1 else self.settings.momentum * first + direction
                direction = first
            self.values[name] = value - self.settings.rate * direction
            self._state[name] = (count, first, second)


def values_of(block: unigrad.Block) -> dict[str, Array]:
    """Return the values of all parameters."""
    return {name: block.backend.arrays.to_numpy(tensor) for name, tensor in block.parameters.items()}

"""The models of the examples on Paddle; models_numpy.py is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn


class Network(nn.Layer):
    """A small convolutional classifier with one branch that is defined and never called."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2D(1, 16, 3, padding=1),
            nn.BatchNorm2D(16),
            nn.ReLU(),
            nn.Conv2D(16, 32, 3, padding=1),
            nn.BatchNorm2D(32),
            nn.ReLU(),
            nn.MaxPool2D(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10)
        )
        self.auxiliary = nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, 10)`` of images ``(batch, 1, 8, 8)``."""
        return self.head(self.features(images))


class Residual(nn.Layer):
    """Two convolutions with batch normalization, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2D(channels, channels, 3, padding=1)
        self.first_norm = nn.BatchNorm2D(channels)
        self.second = nn.Conv2D(channels, channels, 3, padding=1)
        self.second_norm = nn.BatchNorm2D(channels)

    def forward(self, regions: Tensor) -> Tensor:
        """Return features ``(regions, channels, height, width)`` of the same shape."""
        hidden = nn.functional.relu(self.first_norm(self.first(regions)))
        return nn.functional.relu(regions + self.second_norm(self.second(hidden)))


def build(dropout: float, dtype: str) -> Network:
    """Return the network in the given dtype."""
    return Network(dropout).to(dtype=dtype)


def tensor(array: np.ndarray) -> Tensor:
    """Return a native tensor of the values."""
    return paddle.to_tensor(array)


def parameter(array: np.ndarray) -> Tensor:
    """Return a trainable leaf of the values."""
    made = paddle.create_parameter(list(array.shape), array.dtype.name)
    made.set_value(array)
    return made


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return nn.functional.cross_entropy(logits, labels)


def sgd(rate: float) -> Callable[[list[Any]], Any]:
    """Return a factory of stochastic gradient descent with momentum 0.9."""
    return lambda parameters: paddle.optimizer.Momentum(rate, 0.9, parameters)


def to_reference(role: str, array: np.ndarray) -> np.ndarray:
    """Return a parameter's values in the layout that all examples share."""
    return array.T if role == "dense" else array


def from_reference(role: str, array: np.ndarray) -> np.ndarray:
    """Undo ``to_reference``."""
    return array.T if role == "dense" else array

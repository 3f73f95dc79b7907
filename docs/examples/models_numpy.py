"""The models of the examples on the NumPy backend; models_torch.py is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from unigrad_numpy import Parameter, Tensor, nn, ops, optim


class Network(nn.Module):
    """A small convolutional classifier with one branch that is defined and never called."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10)
        )
        self.auxiliary = nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, 10)`` of images ``(batch, 1, 8, 8)``."""
        return self.head(self.features(images))


class Residual(nn.Module):
    """Two convolutions with batch normalization, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.first_norm = nn.BatchNorm(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.second_norm = nn.BatchNorm(channels)

    def forward(self, regions: Tensor) -> Tensor:
        """Return features ``(regions, channels, height, width)`` of the same shape."""
        hidden = ops.relu(self.first_norm(self.first(regions)))
        return ops.relu(regions + self.second_norm(self.second(hidden)))


def build(dropout: float, dtype: str) -> Network:
    """Return the network in the given dtype."""
    return Network(dropout).to(dtype)


def tensor(array: np.ndarray) -> Tensor:
    """Return a native tensor of the values."""
    return Tensor(array)


def parameter(array: np.ndarray) -> Tensor:
    """Return a trainable leaf of the values."""
    return Parameter(array)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return ops.cross_entropy(logits, labels)


def sgd(rate: float) -> Callable[[list[Any]], Any]:
    """Return a factory of stochastic gradient descent with momentum 0.9."""
    return lambda parameters: optim.SGD(parameters, lr=rate, momentum=0.9)

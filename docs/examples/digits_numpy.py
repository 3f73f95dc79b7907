"""The digits network on the NumPy backend; digits_torch.py is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from unigrad_numpy import Tensor, nn, ops, optim


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
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10))
        self.auxiliary = nn.Linear(512, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, 10)`` of images ``(batch, 1, 8, 8)``."""
        return self.head(self.features(images))


def build(dropout: float, dtype: str) -> Network:
    """Return the network in the given dtype."""
    return Network(dropout).astype(dtype)


def tensor(array: np.ndarray) -> Tensor:
    """Return a native tensor of the values."""
    return Tensor(array)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return ops.cross_entropy(logits, labels)


def sgd(rate: float) -> Callable[[list[Any]], Any]:
    """Return a factory of stochastic gradient descent with momentum 0.9."""
    return lambda parameters: optim.SGD(parameters, lr=rate, momentum=0.9)

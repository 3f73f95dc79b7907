"""The models of the examples on MindSpore; models_numpy.py is its twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


def convolution(inputs: int, outputs: int) -> nn.Cell:
    """Return a convolution of 3 by 3 that keeps height and width; MindSpore's default has no bias."""
    return nn.Conv2d(inputs, outputs, 3, pad_mode="pad", padding=1, has_bias=True)


class Network(nn.Cell):
    """A small convolutional classifier with one branch that is defined and never called."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            convolution(1, 16),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            convolution(16, 32),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2, 2),
            nn.Flatten(),
        )
        self.head = nn.SequentialCell(
            nn.Dropout(p=dropout), nn.Dense(512, 64), nn.ReLU(), nn.Dropout(p=dropout), nn.Dense(64, 10)
        )
        self.auxiliary = nn.Dense(512, 10)

    def construct(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, 10)`` of images ``(batch, 1, 8, 8)``."""
        return self.head(self.features(images))


class Residual(nn.Cell):
    """Two convolutions with batch normalization, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = convolution(channels, channels)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = convolution(channels, channels)
        self.second_norm = nn.BatchNorm2d(channels)

    def construct(self, regions: Tensor) -> Tensor:
        """Return features ``(regions, channels, height, width)`` of the same shape."""
        hidden = ops.relu(self.first_norm(self.first(regions)))
        return ops.relu(regions + self.second_norm(self.second(hidden)))


def build(dropout: float, dtype: str) -> Network:
    """Return the network; MindSpore has convolutions in float32 only on the CPU."""
    if dtype != "float32":
        raise SystemExit(f"error: MindSpore has no convolution in {dtype} on the CPU; use --dtype float32")
    return Network(dropout)


def tensor(array: np.ndarray) -> Tensor:
    """Return a native tensor of the values."""
    return Tensor(array)


def parameter(array: np.ndarray) -> Tensor:
    """Return a trainable leaf of the values."""
    return Parameter(Tensor(array), name="parameter")


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy."""
    return ops.cross_entropy(logits, labels.astype(mindspore.int32))


def sgd(rate: float) -> Callable[[list[Any]], Any]:
    """Return a factory of stochastic gradient descent with momentum 0.9."""
    return lambda parameters: nn.SGD(parameters, learning_rate=rate, momentum=0.9)

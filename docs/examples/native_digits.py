"""What the native_*.py programs share: scikit-learn's 1,797 images of digits as torch tensors, and a small classifier."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error.name} is missing (scikit-learn has the images); in a clone of unigrad: pip install '.[dev]'"
    )

BATCH = 100
STEPS_PER_EPOCH = 18


def data() -> tuple[Tensor, Tensor]:
    """Return images ``(1797, 64)`` from 0 to 1, and labels."""
    bunch = load_digits()
    return torch.tensor(bunch.data / 16, dtype=torch.float32), torch.tensor(bunch.target)


def classifier(seed: int = 0) -> nn.Sequential:
    """Return a network of two layers with weights that the seed settles."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batches(epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of some epochs, always in the same order."""
    images, labels = data()
    for _ in range(epochs):
        yield from zip(images.split(BATCH), labels.split(BATCH), strict=True)


def accuracy(model: nn.Module) -> float:
    """Return the share of all images that the model classifies rightly."""
    images, labels = data()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()

"""Clip gradients by torch's own function, or by the collector: after write_back both see the same gradients.

    python docs/examples/native_clip.py

``clip_grad_norm_`` divides by the norm plus 1e-6, ``clip_by_global_norm`` by the norm, so a step of the two differs by about a
millionth.
"""

from __future__ import annotations

import torch
from native_digits import accuracy, batches, classifier
from torch import nn

import unigrad

MAXIMUM = 0.25


def train(epochs: int = 3, by_torch: bool = True) -> tuple[nn.Module, int]:
    """Return the trained model, and how many steps were clipped."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    clipped = 0
    for images, labels in batches(epochs):
        with unigrad.GradientCollector(model) as collector:
            collector.backward(nn.functional.cross_entropy(model(images), labels))
        if by_torch:
            collector.write_back()
            norm = nn.utils.clip_grad_norm_(model.parameters(), MAXIMUM)
        else:
            norm = nn.utils.get_total_norm(list(collector.gradients.values()))
            collector.clip_by_global_norm(MAXIMUM)
            collector.write_back()
        clipped += bool(norm > MAXIMUM)
        optimizer.step()
    return model, clipped


if __name__ == "__main__":
    model, clipped = train()
    other, _ = train(by_torch=False)
    apart = max((a - b).abs().max().item() for a, b in zip(model.parameters(), other.parameters(), strict=True))
    print(f"clipped {clipped} steps, accuracy {accuracy(model):.3f}")
    print(f"clipped by the collector instead, weights differ by at most {apart:.0e}")

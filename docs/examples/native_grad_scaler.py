"""Train in float16 with torch's GradScaler: the scaler looks at ``.grad``, so the collector writes back before it.

    python docs/examples/native_grad_scaler.py

The scale begins far too large. Gradients then overflow, the scaler skips the step and halves the scale, as it does in a plain
loop: an Inf that was collected is written back as it is.
"""

from __future__ import annotations

import torch
from native_digits import accuracy, batches, classifier
from torch import nn

import unigrad


def train(epochs: int = 5, scale: float = 2.0**24) -> tuple[nn.Module, torch.amp.GradScaler, int]:
    """Return the trained model, the scaler, and how many steps were skipped."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    skipped = 0
    for images, labels in batches(epochs):
        with unigrad.GradientCollector(model) as collector:
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(images), labels)
            collector.backward(scaler.scale(loss))
        collector.write_back()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return model, scaler, skipped


if __name__ == "__main__":
    model, scaler, skipped = train()
    print(f"skipped {skipped} steps that overflowed, the scale is now {scaler.get_scale():.0f}")
    print(f"accuracy {accuracy(model):.3f}")

"""Train under torch's autocast in bfloat16, with a part that is recomputed: weights and gradients stay float32.

    python docs/examples/native_autocast.py

Only the forward stands under autocast, as in a plain loop; the recompute of the checkpoint puts itself under the same one.
"""

from __future__ import annotations

import torch
from native_digits import accuracy, batches, classifier
from torch import nn

import unigrad


def train(epochs: int = 4, recompute: bool = True) -> tuple[nn.Module, set[torch.dtype]]:
    """Return the trained model, and the dtypes of the gradients."""
    model = classifier()
    run = unigrad.checkpoint(model) if recompute else model
    optimizer = unigrad.Optimizer(model, lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
    kinds = set()
    for images, labels in batches(epochs):
        with unigrad.GradientCollector(model) as collector:
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(run(images), labels)
            collector.backward(loss)
            collector.apply(optimizer)
        kinds |= {gradient.dtype for gradient in collector.gradients.values()}
    return model, kinds


if __name__ == "__main__":
    model, kinds = train()
    print(f"gradients are {', '.join(map(str, kinds))}")
    print(f"accuracy {accuracy(model):.3f}")

"""Follow a learning-rate schedule of torch with an optimizer that is made late.

    python docs/examples/native_schedule.py

A second head comes into use half-way. Its parameters are registered then, and its first step has the rate that the schedule has
reached, with a momentum of its own. ``schedule=`` is called with the native optimizer before the first step; the program steps it.
"""

from __future__ import annotations

import torch
from native_digits import STEPS_PER_EPOCH, accuracy, batches, classifier
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import unigrad

EPOCHS = 4
STEPS = EPOCHS * STEPS_PER_EPOCH


def loss_of(model: nn.Module, head: nn.Module, images: torch.Tensor, labels: torch.Tensor, both: bool) -> torch.Tensor:
    """Return the loss of the classifier, plus that of the second head if ``both``."""
    hidden = model[:2](images)
    loss = nn.functional.cross_entropy(model[2](hidden), labels)
    return loss + nn.functional.cross_entropy(head(hidden), labels) if both else loss


def train() -> tuple[nn.Module, nn.Module, unigrad.Optimizer]:
    """Return the trained parts and their optimizer."""
    model, head = classifier(), nn.Linear(64, 10)
    block = unigrad.join(model=model, head=head)
    optimizer = unigrad.Optimizer(
        block,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        schedule=lambda native: OneCycleLR(native, max_lr=0.3, total_steps=STEPS),
    )
    for step, (images, labels) in enumerate(batches(EPOCHS)):
        with unigrad.GradientCollector(block, expect_unused="head.*" if step < STEPS // 2 else ()) as collector:
            collector.backward(loss_of(model, head, images, labels, both=step >= STEPS // 2))
            collector.apply(optimizer)
        optimizer.schedule.step()
    return model, head, optimizer


if __name__ == "__main__":
    model, head, optimizer = train()
    print(f"groups {len(optimizer.native.param_groups)}, parameters {len(optimizer.served)}")
    print(f"accuracy {accuracy(model):.3f}, of the second head {accuracy(nn.Sequential(*model[:2], head)):.3f}")

"""PyTorch's own idiom, for `unigrad bench`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils.checkpoint import checkpoint

BOUNDS = {
    "step, large": 1.05,
    "step, small": 1.30,
    "input": 1.05,
    "unrelated": 1.20,
    "checkpoint, time": 1.10,
    "checkpoint, peak": 1.05,
    "microbatch, peak": 0.35,
    "native engine": 1.05,
    "several processes": 1.05,
}
"""What a figure may be at most."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def stack(layers: int, width: int, activation: str | None, dropout: float = 0.0) -> nn.Module:
    """Return dense layers, each followed by the activation and by dropout."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts.append(nn.Linear(width, width))
        if activation is not None:
            parts.append(ACTIVATIONS[activation]())
        if dropout:
            parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts)


def data(batch: int, width: int) -> Tensor:
    """Return a float32 input."""
    return torch.randn(batch, width)


def loss(output: Tensor) -> Tensor:
    """Return the mean of squares."""
    return output.square().mean()


def step(model: Callable[[Any], Any], parameters: Sequence[Any], x: Any) -> Callable[[], None]:
    """Return zero_grad, forward, backward."""

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        loss(model(x)).backward()

    return run


def input_step(model: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    """Return autograd.grad with respect to the input."""

    def run() -> None:
        leaf = x.detach().requires_grad_()
        torch.autograd.grad(loss(model(leaf)), leaf)

    return run


def recompute(segments: Sequence[Any]) -> Callable[[Any], Any]:
    """Run the segments under torch.utils.checkpoint, non-reentrant."""

    def run(x: Any) -> Any:
        for segment in segments:
            x = checkpoint(segment, x, use_reentrant=False)
        return x

    return run


def chain(segments: Sequence[Any]) -> nn.Module:
    """Return the segments in order as one module."""
    return nn.Sequential(*segments)


def hooked(model: nn.Module) -> nn.Module:
    """Put a hook that runs after accumulation on every parameter."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


@contextmanager
def processes(folder: str, rank: int, count: int) -> Iterator[None]:
    """Make this process one of a group of gloo over loopback, with its share of the cores."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=count)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def averaged(model: nn.Module) -> nn.Module:
    """Return the model in DistributedDataParallel."""
    return nn.parallel.DistributedDataParallel(model)


def unrelated(count: int) -> list[Any]:
    """Return small leaves that hold a gradient."""
    leaves = []
    for _ in range(count):
        leaf = torch.ones(2, requires_grad=True)
        leaf.grad = torch.ones(2)
        leaves.append(leaf)
    return leaves

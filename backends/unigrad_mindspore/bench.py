"""MindSpore's own idiom, for `unigrad bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from unigrad_mindspore.kernels import settle

BOUNDS = {
    "step, large": 1.10,
    "unrelated": 1.30,
    "checkpoint, time": 1.10,
    "checkpoint, peak": 1.05,
    "checkpoint / plain, peak": 0.56,
    "microbatch with dropout, peak": 0.45,
}
"""What a figure may be at most."""
KEEPS_MEMORY = True
"""Freed memory stays in MindSpore's pool, and ``mindspore.runtime.empty_cache`` leaves it there on a CPU."""
ACTIVATIONS: dict[str, Callable[[], nn.Cell]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def stack(layers: int, width: int, activation: str | None, dropout: float = 0.0) -> nn.Cell:
    """Return dense layers, each followed by the activation and by dropout."""
    parts: list[nn.Cell] = []
    for _ in range(layers):
        parts.append(nn.Dense(width, width))
        if activation is not None:
            parts.append(ACTIVATIONS[activation]())
        if dropout:
            parts.append(nn.Dropout(p=dropout))
    return nn.SequentialCell(*parts).set_train()


def data(batch: int, width: int) -> Any:
    """Return a float32 input."""
    return Tensor(np.random.default_rng(0).standard_normal((batch, width)).astype("float32"))


def loss(output: Any) -> Any:
    """Return the mean of squares."""
    return ops.mean(output * output)


def step(model: Callable[[Any], Any], parameters: Sequence[Any], x: Any) -> Callable[[], None]:
    """Return value_and_grad of the parameters."""
    compute = mindspore.value_and_grad(lambda x: loss(model(x)), None, list(parameters))

    def run() -> None:
        compute(x)
        settle()

    return run


def input_step(model: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    """Return grad with respect to the input."""
    compute = mindspore.grad(lambda x: loss(model(x)))

    def run() -> None:
        compute(x)
        settle()

    return run


def recompute(segments: Sequence[Any]) -> Callable[[Any], Any]:
    """Run the segments in order, each with ``Cell.recompute()``."""
    for segment in segments:
        segment.recompute()

    def run(x: Any) -> Any:
        for segment in segments:
            x = segment(x)
        return x

    return run


def chain(segments: Sequence[Any]) -> nn.Cell:
    """Return the segments in order as one Cell."""
    return nn.SequentialCell(*segments)


def unrelated(count: int) -> list[Any]:
    """Return small leaves that hold a gradient where the engine puts it."""
    leaves = []
    for index in range(count):
        leaf = Parameter(Tensor(np.ones(2, np.float32)), name=f"unrelated{index}")
        leaf._grad = Tensor(np.ones(2, np.float32))
        leaves.append(leaf)
    return leaves

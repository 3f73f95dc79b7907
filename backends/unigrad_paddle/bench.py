"""Paddle's own idiom, for `unigrad bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import paddle
from paddle import nn

BOUNDS = {
    "step, large": 1.10,
    "unrelated": 1.30,
    "checkpoint, time": 1.10,
    "checkpoint, peak": 1.05,
    "checkpoint / plain, peak": 0.50,
    "microbatch with dropout, peak": 0.45,
}
"""What a figure may be at most."""
ACTIVATIONS: dict[str, Callable[[], Any]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def stack(layers: int, width: int, activation: str | None, dropout: float = 0.0) -> Any:
    """Return dense layers, each followed by the activation and by dropout."""
    parts: list[Any] = []
    for _ in range(layers):
        parts.append(nn.Linear(width, width))
        if activation is not None:
            parts.append(ACTIVATIONS[activation]())
        if dropout:
            parts.append(nn.Dropout(dropout))
    return nn.Sequential(*parts)


def data(batch: int, width: int) -> Any:
    """Return a float32 input."""
    return paddle.randn([batch, width])


def loss(output: Any) -> Any:
    """Return the mean of squares."""
    return output.square().mean()


def step(model: Callable[[Any], Any], parameters: Sequence[Any], x: Any) -> Callable[[], None]:
    """Return clear_gradient, forward, backward."""

    def run() -> None:
        for parameter in parameters:
            parameter.clear_gradient(False)
        loss(model(x)).backward()

    return run


def input_step(model: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    """Return paddle.grad with respect to the input."""

    def run() -> None:
        leaf = x.detach()
        leaf.stop_gradient = False
        paddle.grad(loss(model(leaf)), leaf)

    return run


def recompute(segments: Sequence[Any]) -> Callable[[Any], Any]:
    """Run the segments under Paddle's own recompute, non-reentrant."""
    from paddle.distributed.fleet.utils import recompute as native
    from paddle.distributed.fleet.utils.log_util import logger

    logger.setLevel("ERROR")  # it warns that the first input needs no gradient, at each call

    def run(x: Any) -> Any:
        for segment in segments:
            x = native(segment, x, use_reentrant=False)
        return x

    return run


def chain(segments: Sequence[Any]) -> Any:
    """Return the segments in order as one layer."""
    return nn.Sequential(*segments)


def unrelated(count: int) -> list[Any]:
    """Return small leaves that hold a gradient."""
    leaves = []
    for _ in range(count):
        leaf = paddle.ones([2])
        leaf.stop_gradient = False
        leaf.grad = paddle.ones([2])
        leaves.append(leaf)
    return leaves

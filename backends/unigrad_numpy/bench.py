"""The NumPy backend's own engine without the contract, for `unigrad bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unigrad_numpy import graph, nn
from unigrad_numpy.tensor import Parameter, Tensor

BOUNDS = {"unrelated": 1.20, "microbatch, peak": 0.35}
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
    return Tensor(np.random.default_rng(0).standard_normal((batch, width)).astype("float32"))


def loss(output: Tensor) -> Tensor:
    """Return the mean of squares."""
    return (output * output).mean()


def step(model: Callable[[Any], Any], parameters: Sequence[Any], x: Any) -> Callable[[], None]:
    """Return forward, and vector-Jacobian product of all parameters."""

    def run() -> None:
        for parameter in parameters:
            parameter.grad = None
        output = loss(model(x))
        found = graph.vector_jacobian_product([output], [None], list(parameters))
        for parameter, gradient in zip(parameters, found, strict=True):
            parameter.grad = gradient
        nodes, _ = graph.walk([output])
        graph.release(nodes)

    return run


def input_step(model: Callable[[Any], Any], x: Any) -> Callable[[], None]:
    """Return the vector-Jacobian product of the input."""

    def run() -> None:
        leaf = Parameter(x.numpy())
        graph.vector_jacobian_product([loss(model(leaf))], [None], [leaf])

    return run


def recompute(segments: Sequence[Any]) -> None:
    """Return None: the backend has no recompute but unigrad's."""
    return


def chain(segments: Sequence[Any]) -> nn.Module:
    """Return the segments in order as one module."""
    return nn.Sequential(*segments)


def unrelated(count: int) -> list[Any]:
    """Return small leaves that hold a gradient."""
    leaves = []
    for _ in range(count):
        leaf = Parameter(np.ones(2, "float32"))
        leaf.grad = Tensor(np.ones(2, "float32"))
        leaves.append(leaf)
    return leaves

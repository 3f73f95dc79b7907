"""Every kind of random draw that a backend may declare, and a short training run, as bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import unigrad
from unigrad_conformance.suite.problems import array, dense, to_numpy

__all__ = ["DRAWS", "train"]


def _ones(samples: Any) -> Any:
    return samples.tensor(np.ones(64, "float32"))


DRAWS: Mapping[str, Callable[[Any, Any], Any]] = {
    "dropout": lambda samples, generator: samples.operations.dropout(_ones(samples), 0.5),
    "normal": lambda samples, generator: samples.operations.normal((64,)),
    "uniform": lambda samples, generator: samples.operations.uniform((64,)),
    "own_normal": lambda samples, generator: samples.own_normal(generator, (64,)),
}
"""Name as in ``BackendSpec.random_sources`` -> draw of 64 numbers, given the samples and an own generator."""


def train(samples: Any, steps: int = 3) -> dict[str, bytes]:
    """Return the bytes of state and losses of a short training run with dropout, seeded with 7."""
    unigrad.seed(7)
    layers = [
        dense(samples, 4, 8),
        samples.layer("batch_norm", channels=8, momentum=0.1, epsilon=1e-5, affine=True),
        samples.layer("dropout", rate=0.5),
        dense(samples, 8, 2, seed=1),
    ]
    block = unigrad.wrap(samples.layer("sequential", layers=layers)).train()
    optimizer = unigrad.Optimizer(block, samples.adamw(0.01, 0.1))
    ops = samples.operations
    found: dict[str, bytes] = {}
    for step in range(steps):
        with unigrad.GradientCollector(block) as collector:
            x = samples.tensor(array(6, 4, seed=step)) + ops.normal((6, 4))
            out = block(x)
            loss = ops.mean(out * out)
            collector.backward(loss)
            collector.apply(optimizer)
        found[f"loss {step}"] = to_numpy(loss).tobytes()
    return {**found, **{name: values.tobytes() for name, values in block.state().items()}}

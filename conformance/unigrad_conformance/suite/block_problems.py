"""Layers of every kind with their canonical names, and models with branches, for the tests of blocks and usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import unigrad
from unigrad.protocols import Backend
from unigrad_conformance.suite.problems import array, dense

__all__ = [
    "KINDS",
    "Kind",
    "branches",
    "collect",
    "fill",
    "layer_of",
    "norm_model",
    "squares",
    "state_bits",
    "vector",
]


@dataclass(frozen=True)
class Kind:
    """One kind of layer.

    Parameters
    ----------
    config
        Arguments of ``Samples.layer``.
    parameters
        Canonical leaf names, each with the shape in the reference layout.
    role
        Role of its parameters.
    buffers
        Canonical names of running statistics.
    """

    config: Mapping[str, Any]
    parameters: Mapping[str, tuple[int, ...]]
    role: str
    buffers: tuple[str, ...] = ()


def _recurrent(gates: int) -> dict[str, Any]:
    rows = 2 * gates
    return {
        "input_weight": array(rows, 3, seed=10),
        "hidden_weight": array(rows, 2, seed=11),
        "input_bias": array(rows, seed=12),
        "hidden_bias": array(rows, seed=13),
    }


def _recurrent_names(gates: int) -> dict[str, tuple[int, ...]]:
    rows = 2 * gates
    return {"weight_ih_l0": (rows, 3), "weight_hh_l0": (rows, 2), "bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}


KINDS: Mapping[str, Kind] = {
    "dense": Kind({"weight": array(2, 3), "bias": array(2)}, {"weight": (2, 3), "bias": (2,)}, "dense"),
    "conv2d": Kind(
        {"weight": array(4, 3, 2, 2), "bias": array(4), "stride": 1, "padding": 0},
        {"weight": (4, 3, 2, 2), "bias": (4,)},
        "conv",
    ),
    "conv_transpose2d": Kind(
        {"weight": array(3, 4, 2, 2), "bias": array(4), "stride": 1, "padding": 0},
        {"weight": (3, 4, 2, 2), "bias": (4,)},
        "transposed conv",
    ),
    "batch_norm": Kind(
        {"channels": 3, "momentum": 0.1, "epsilon": 1e-5, "affine": True},
        {"weight": (3,), "bias": (3,)},
        "norm",
        ("running_mean", "running_var"),
    ),
    "layer_norm": Kind({"features": 3, "epsilon": 1e-5}, {"weight": (3,), "bias": (3,)}, "norm"),
    "embedding": Kind({"weight": array(5, 2), "padding_index": None}, {"weight": (5, 2)}, "embedding"),
    "lstm": Kind(_recurrent(4), _recurrent_names(4), "recurrent"),
    "gru": Kind(_recurrent(3), _recurrent_names(3), "recurrent"),
}
"""Kinds of layers that have parameters."""


def layer_of(samples: Any, kind: str) -> Any:
    """Return a native layer of one of ``KINDS``."""
    return samples.layer(kind, **KINDS[kind].config)


def branches(samples: Any, *, seed: int = 0) -> Any:
    """Return a native model ``encoder`` 3-4 with two heads ``left`` and ``right`` 4-2, of which a call uses the named ones.

    Its forward is ``model(x, use=("left",))`` and returns one output per head.
    """

    def forward(self, x, use=("left",)):
        hidden = self.encoder(x)
        return [getattr(self, name)(hidden) for name in use]

    return samples.model(
        forward,
        layers={
            "encoder": dense(samples, 3, 4, seed=seed),
            "left": dense(samples, 4, 2, seed=seed + 1),
            "right": dense(samples, 4, 2, seed=seed + 2),
        },
    )


def norm_model(samples: Any, *, affine: bool = True, momentum: float = 0.1) -> Any:
    """Return a native model of one batch normalization ``norm`` of one channel, mean 0 and variance 1 so far."""
    norm = samples.layer("batch_norm", channels=1, momentum=momentum, epsilon=1e-5, affine=affine)
    return samples.model(lambda self, x: self.norm(x), layers={"norm": norm})


def vector(samples: Any, forward: Callable[..., Any], **values: Any) -> Any:
    """Return a native model whose own parameters are float32 vectors or numbers, with the given forward."""
    return samples.model(
        forward, parameters={name: np.asarray(value, dtype="float32") for name, value in values.items()}
    )


def collect(block: Any, loss: Callable[[], Any], **options: Any) -> unigrad.GradientCollector:
    """Return a closed collector that did one backward of ``loss()``; unused parameters are not told unless asked."""
    options.setdefault("on_unused", "ignore")
    with unigrad.GradientCollector(block, **options) as collector:
        collector.backward(loss())
    return collector


def squares(samples: Any, *tensors: Any) -> Callable[[], Any]:
    """Return a function that computes the sum of the squares of all elements of the tensors."""
    return lambda: sum(samples.operations.sum(tensor * tensor) for tensor in tensors) * 1.0


def fill(backend: Backend, block: unigrad.Block, seed: int = 1) -> None:
    """Overwrite every parameter and every floating buffer of a block with other values, positive ones."""
    for index, tensor in enumerate([*block.parameters.values(), *block.buffers.values()]):
        if backend.arrays.is_floating(tensor):
            values = np.abs(array(*backend.arrays.shape(tensor), seed=1000 * seed + index)) + 0.5
            backend.arrays.assign(tensor, values.astype(backend.arrays.dtype(tensor)))


def state_bits(block: unigrad.Block) -> dict[str, bytes]:
    """Return the bytes of all parameters and buffers by name."""
    return {name: values.tobytes() for name, values in block.state().items()}

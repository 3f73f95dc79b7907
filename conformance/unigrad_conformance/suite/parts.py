"""The loop over parts that a microbatched call is compared with, and one recorded step of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import unigrad
from unigrad import tree
from unigrad_conformance.observations import EPSILON
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

__all__ = ["Step", "bits_of_parts", "cut", "deep", "kept", "loop", "same_step", "single_steps", "step", "weighed"]


@dataclass(frozen=True)
class Step:
    """What one step gave.

    Parameters
    ----------
    outputs
        Output leaves that are tensors, by path.
    gradients, inputs
        Gradients of parameters and of the inputs, by name.
    """

    outputs: Mapping[str, np.ndarray[Any, Any]]
    gradients: Mapping[str, np.ndarray[Any, Any]]
    inputs: Mapping[str, np.ndarray[Any, Any]]

    def all(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all values in one mapping."""
        return {**self.outputs, **self.gradients, **{f"input {name}": value for name, value in self.inputs.items()}}


def weighed(samples: Any, outputs: Any, start: int = 0, axis: int = 0) -> Any:
    """Return a loss that weighs every output element differently and uses every output once.

    ``start`` is the number of the first sample, so that the losses of parts are parts of the loss.
    """
    ops = samples.operations
    total = None
    for index, leaf in enumerate(value for value in tree.flatten(outputs)[0] if _is_tensor(value)):
        shape = to_numpy(leaf).shape
        whole = array(*(64 if place == axis else size for place, size in enumerate(shape)), seed=700 + index)
        weights = np.take(whole, range(start, start + shape[axis]), axis=axis) if shape else whole
        dtype = unigrad.backend_of(leaf).arrays.dtype(leaf)
        term = ops.sum(ops.tanh(leaf) * samples.tensor(weights, dtype))
        total = term if total is None else total + term
    return total


def _is_tensor(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str):
        return False
    return unigrad.backend_of(value).arrays.is_tensor(value)


def step(
    samples: Any,
    block: Any,
    call: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    loss: Callable[[Any], Any] | None = None,
    others: Mapping[str, Any] | None = None,
) -> Step:
    """Run a call in a new collector and differentiate its loss.

    Parameters
    ----------
    samples
        Native test material.
    block
        Whose parameter gradients are collected.
    call
        Called with the inputs as keywords.
    inputs
        Native tensors by argument; watched.
    loss
        Makes the loss of the outputs; :func:`weighed` by default.
    others
        Further keyword arguments, not watched.
    """
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        watched = {name: collector.watch(value, name=name) for name, value in inputs.items()}
        outputs = call(**watched, **(others or {}))
        collector.backward(weighed(samples, outputs) if loss is None else loss(outputs))
    leaves, layout = tree.flatten(outputs)
    found = zip(layout.paths("output"), leaves, strict=True)
    return Step(
        {path: to_numpy(leaf) for path, leaf in found if _is_tensor(leaf)},
        gradients_of(collector),
        {name: to_numpy(value) for name, value in collector.input_gradients.items()},
    )


def cut(samples: Any, value: Any, start: int, stop: int, axis: int = 0) -> Any:
    """Return the samples from ``start`` to ``stop`` by the framework's own indexing."""
    return samples.operations.index(value, (slice(None),) * axis + (slice(start, stop),))


def loop(
    samples: Any, call: Callable[..., Any], size: int, *, axis: int = 0, whole: Sequence[str] = ()
) -> Callable[..., Any]:
    """Return the part-wise reference: the same loop over parts, without recompute, concatenated in one graph.

    For a call with keyword tensors, and one tensor or a tuple of tensors as output.
    """

    def run(**inputs: Any) -> Any:
        split = {name: value for name, value in inputs.items() if name not in whole}
        batch = to_numpy(next(iter(split.values()))).shape[axis]
        outputs = []
        for start in range(0, batch, size):
            part = {name: cut(samples, value, start, min(start + size, batch), axis) for name, value in split.items()}
            outputs.append(call(**{**inputs, **part}))
        if len(outputs) == 1:
            return outputs[0]
        if isinstance(outputs[0], tuple):
            return tuple(samples.operations.concat(column, axis) for column in zip(*outputs, strict=True))
        return samples.operations.concat(outputs, axis)

    return run


def single_steps(
    samples: Any, block: Any, call: Callable[..., Any], inputs: Mapping[str, Any], size: int, *, axis: int = 0
) -> list[Step]:
    """Return the steps of the parts one by one: their gradients are the terms that a whole step sums."""
    batch = to_numpy(next(iter(inputs.values()))).shape[axis]
    steps = []
    for start in range(0, batch, size):
        part = {name: cut(samples, value, start, min(start + size, batch), axis) for name, value in inputs.items()}
        steps.append(step(samples, block, call, part, loss=lambda y, s=start: weighed(samples, y, s, axis)))  # type: ignore[misc]  # lambda keeps its own s
    return steps


def same_step(left: Step, right: Step) -> None:
    """Assert that two steps gave the same names and bits."""
    same_bits(left.outputs, right.outputs)
    same_bits(left.inputs, right.inputs)
    same_bits(left.gradients, right.gradients)


def bits_of_parts(found: Step, reference: Step, terms: Sequence[Step], sharing: str) -> None:
    """Assert clause M1 with the words of C1: bits, or a bound where a parameter is used in several parts.

    Parameters
    ----------
    found, reference
        The microbatched step and the loop over parts.
    terms
        The steps of the single parts.
    sharing
        What the backend declares for ``Guarantee.BITEXACT_SHARING``.
    """
    if sharing == "kept" or len(terms) == 1:
        same_step(found, reference)
        return
    same_bits(found.outputs, reference.outputs)
    same_bits(found.inputs, reference.inputs)
    assert sorted(found.gradients) == sorted(reference.gradients)
    for name, value in reference.gradients.items():
        sizes = sum(np.abs(term.gradients[name].astype(np.float64)) for term in terms)
        # Two sums of n terms in any order each differ from the exact one by at most (n - 1) eps sum|terms|, to first order.
        bound = 2 * (len(terms) - 1) * EPSILON[value.dtype.name] * sizes
        assert np.all(np.abs(found.gradients[name].astype(np.float64) - value) <= bound), name


def deep(samples: Any, width: int, layers: int = 12) -> Any:
    """Return ``layers`` times dense and relu, one native model."""
    parts = []
    for index in range(layers):
        parts += [dense(samples, width, width, seed=index), samples.layer("relu")]
    return samples.layer("sequential", layers=parts)


def kept(block: Any, call: Callable[[], Any]) -> int:
    """Return the bytes kept by a call in a new collector, with its result alive."""
    with unigrad.GradientCollector(block, on_unused="ignore"):
        with unigrad.kept_bytes(block) as meter:
            outputs = call()
        del outputs
    return meter.bytes

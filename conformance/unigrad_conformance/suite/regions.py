"""Plain and checkpointed steps side by side, and models that tests of checkpoint share."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import unigrad
from unigrad import tree
from unigrad_conformance.suite.problems import array, gradients_of, same_bits, to_numpy

Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["Counted", "backward_through", "build_and_compare", "draws", "random_bits", "step", "total"]


class Counted:
    """A count of calls that a model's forward keeps."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        """Count one call, and return how many there were."""
        self.calls += 1
        return self.calls


def total(samples: Any, outputs: Any) -> Any:
    """Return the sum of tanh of every element of every floating tensor in a nesting; each output is used once."""
    parts = []
    for leaf in tree.flatten(outputs)[0]:
        if leaf is None or isinstance(leaf, bool | int | float | str):
            continue
        arrays = unigrad.backend_of(leaf).arrays
        if arrays.is_tensor(leaf) and arrays.is_floating(leaf):
            parts.append(samples.operations.sum(samples.operations.tanh(leaf)))
    loss = parts[0]
    for part in parts[1:]:
        loss = loss + part
    return loss


def draws(samples: Any) -> dict[str, Array]:
    """Draw from every global generator, to tell where its stream stands."""
    return {
        "normal": to_numpy(samples.operations.normal((3,))),
        "uniform": to_numpy(samples.operations.uniform((3,))),
        "python": np.array(random.random()),
        "numpy": np.array(np.random.random()),
    }


def random_bits(backend: Any) -> list[bytes]:
    """Return the state of every global generator, drawing nothing."""
    return [
        np.asarray(backend.rng.to_portable(backend.rng.snapshot())).tobytes(),
        repr(random.getstate()).encode(),
        b"".join(np.asarray(part).tobytes() for part in np.random.get_state(legacy=True)),
    ]


def step(
    samples: Any,
    block: unigrad.Block,
    run: Callable[..., Any],
    *arrays: Array,
    backwards: int = 1,
    seed: int = 3,
) -> dict[str, Array]:
    """Run one training step and return everything that can be observed of it.

    Floating inputs are watched; ``backwards`` is the number of backward calls, which are added up.
    """
    unigrad.seed(seed)
    found: dict[str, Array] = {}
    with unigrad.GradientCollector(block, accumulate="add", on_unused="ignore") as collector:
        inputs = []
        for index, value in enumerate(arrays):
            tensor = samples.tensor(value)
            inputs.append(collector.watch(tensor, name=str(index)) if value.dtype.kind == "f" else tensor)
        loss = total(samples, run(*inputs))
        for index in range(backwards):
            collector.backward(loss, retain_graph=index < backwards - 1)
        found["loss"] = to_numpy(loss)
        found |= {f"gradient of {name}": to_numpy(value) for name, value in collector.gradients.items()}
        found |= {f"gradient of input {name}": to_numpy(value) for name, value in collector.input_gradients.items()}
        found |= {f"draw of {name}": value for name, value in draws(samples).items()}
    found |= {f"buffer {name}": to_numpy(value) for name, value in block.buffers.items()}
    return found


def build_and_compare(
    samples: Any,
    build: Callable[[], Any],
    *arrays: Array,
    checkpoint: Callable[[Any], Any] = unigrad.checkpoint,
    backwards: int = 1,
) -> dict[str, Array]:
    """Assert that a checkpointed step on one new model has the bits of a plain step on another, and return them."""
    block = unigrad.wrap(build()).train()
    plain = step(samples, block, block, *arrays, backwards=backwards)
    block = unigrad.wrap(build()).train()
    rerun = step(samples, block, checkpoint(block), *arrays, backwards=backwards)
    same_bits(plain, rerun)
    return plain


def backward_through(
    samples: Any, block: Any, verify: Any = True, between: Callable[[], Any] = lambda: None
) -> dict[str, Array]:
    """Run a step of the checkpointed block on ``x`` of shape ``(2, 3)``; return the gradients.

    ``between`` is called between forward and backward.
    """
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        x = collector.watch(samples.tensor(array(2, 3, seed=1)), name="x")
        out = unigrad.checkpoint(block, verify=verify)(x)
        loss = samples.operations.sum(out if not isinstance(out, tuple | list) else out[0])
        between()
        collector.backward(loss)
    return gradients_of(collector) | {"x": to_numpy(collector.input_gradients["x"])}

"""What can't be a region: its recompute would not be its forward, or would lose a gradient. Each is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad.captures import reachable
from unigrad.errors import CreatedParameterError, UnsupportedError
from unigrad.protocols import Region
from unigrad_tensorflow.arrays import is_variable
from unigrad_tensorflow.graph import node_of
from unigrad_tensorflow.private import (
    function_operations,
    has_tangents,
    in_control_flow,
    outermost,
    raw,
    variable_of,
)
from unigrad_tensorflow.writes import is_changing, written_inputs

__all__ = [
    "Replayable",
    "no_creation",
    "refuse_arguments",
    "refuse_composite",
    "refuse_control_flow",
    "refuse_forward_mode",
    "refuse_hidden",
]

STATEFUL = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
"""Random operations whose state lies in the operation itself and can't be put back."""

_COMPOSITE = (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)

_stateful_functions: dict[str, frozenset[str]] = {}


class Replayable:
    """Is told of each operation of a region's forward.

    Parameters
    ----------
    region
        The region.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._own: list[Any] = []

    def check(self, operation: str, inputs: Any) -> None:
        """Raise for a random operation of TensorFlow's own, and for one that writes a variable of no block of the region."""
        found = {operation} & STATEFUL
        if operation.startswith("__"):
            if operation not in _stateful_functions:
                _stateful_functions[operation] = STATEFUL.intersection(function_operations(operation))
            found = set(_stateful_functions[operation])
        if found:
            raise UnsupportedError(
                f"the random operation {', '.join(sorted(found))} can't be replayed in a checkpointed region: its state lies in "
                "TensorFlow's own kernels. Draw with keras.random, layers of Keras, tf.random.stateless_* or a registered "
                "tf.random.Generator"
            )
        if is_changing(operation):
            self._refuse_changed(outermost(inputs[0]))
        elif operation.startswith("__"):
            for index in written_inputs(operation):
                self._refuse_changed(outermost(inputs[index]))

    def _refuse_changed(self, handle: Any) -> None:
        """Raise if a variable is written that the recompute would not find as it was."""
        if hasattr(handle, "_unigrad_random"):
            return
        if len(self._own) != len(self._region.buffers) + len(self._region.places):  # the region has met another model
            self._own = [raw(entry.tensor).handle for entry in (*self._region.buffers, *self._region.places)]
        variable = None if any(own is handle for own in self._own) else variable_of(handle)
        if variable is not None:  # else it is known, or is being created
            raise UnsupportedError(
                f"a checkpointed region changes the variable {variable.name!r} of no block that it knows; the recompute would change it "
                "again. Give the module that holds it in blocks=, register the generator, or change it outside of the region"
            )


def refuse_arguments(leaves: Sequence[Any]) -> None:
    """Raise for a symbolic tensor of a functional model: the operations of a function become layers, and the region is lost."""
    if any(isinstance(leaf, keras.KerasTensor) for leaf in leaves):
        raise UnsupportedError(
            "a function run as a region can't take a KerasTensor: Keras would put what it calls into the functional model, and not the "
            "region. Checkpoint or microbatch a layer: unigrad.checkpoint(layer)(inputs) is a layer of the model"
        )


def refuse_control_flow() -> None:
    """Raise in the body of a loop, or in a branch, that is being traced."""
    if in_control_flow():
        raise UnsupportedError(
            "a checkpointed region can't run in the body of a tf.while_loop, tf.map_fn or tf.scan, or in a branch of tf.cond, inside of "
            "a tf.function, nor in that of tf.vectorized_map: its recompute would belong to another graph, or be lost. Put the region "
            "around it, or unroll the loop in Python"
        )


def refuse_composite(leaf: Any, node: Callable[[Any], Any]) -> None:
    """Raise for an argument made of several tensors of which one needs a gradient."""
    if isinstance(leaf, _COMPOSITE) and any(map(node, tf.nest.flatten(leaf, expand_composites=True))):
        raise UnsupportedError(
            f"an argument of a checkpointed region is a {type(leaf).__name__} that needs a gradient; pass its parts (values, indices, "
            "row_splits), and put them together inside of the function"
        )


def refuse_hidden(leaf: Any) -> None:
    """Raise for an output in which tensors lie where nobody finds them."""
    if (
        leaf is None
        or is_variable(leaf)
        or isinstance(leaf, tf.Tensor | str | bytes | bool | int | float | complex | np.ndarray)
    ):
        return
    if isinstance(leaf, tf.TensorArray):
        raise UnsupportedError("a checkpointed region can't return a tf.TensorArray; return what its stack() gives")
    for name, found in reachable(leaf, lambda item: isinstance(item, tf.Tensor), closed=("tensorflow", "keras")):
        if isinstance(found, tf.Tensor) and node_of(found) is not None:
            raise UnsupportedError(
                f"a checkpointed region returns a {type(leaf).__name__} that holds a tensor ({name}), which can't be found in it "
                "again; return tensors in lists, tuples, dictionaries, named tuples or dataclasses"
            )


@contextmanager
def no_creation() -> Iterator[None]:
    """Refuse variables that are created now."""

    def refuse(create: Any, **kwargs: Any) -> Any:
        name = kwargs.get("name") or "without a name"
        raise CreatedParameterError(
            f"a checkpointed region creates the variable {name!r} on each call: the recompute would train another than the forward. "
            "Create layers and variables once, outside of the function"
        )

    with tf.variable_creator_scope(refuse):
        yield


def refuse_forward_mode(tensors: Iterable[Any]) -> None:
    """Raise if an accumulator follows one of the tensors."""
    if has_tangents(list(tensors)):
        raise UnsupportedError(
            "a checkpointed region can't be followed by tf.autodiff.ForwardAccumulator, which would give another number: a region is "
            "one operation with a gradient function only. Set enabled = False for the call"
        )

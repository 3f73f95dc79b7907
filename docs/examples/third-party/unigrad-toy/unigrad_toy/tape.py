"""Recording, reach, vector-Jacobian products and release over toygrad's graph. See ``unigrad.protocols.TapeModule``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import toygrad
from toygrad import Tensor, functions, state

from unigrad.errors import GraphReleasedError, NoGraphError, StaleGraphError
from unigrad.protocols import Structure


class Graph:
    """What some losses depend on."""

    def __init__(self, losses: Sequence[Any]) -> None:
        self.losses = losses
        self.nodes, self.leaves = toygrad.below(losses)

    @property
    def released(self) -> str | None:
        """Describe a released node, or None."""
        return next((f"the tensor of shape {node.shape}" for node in self.nodes if node.released), None)


class RecordingRegion:
    """Takes note of every leaf in use."""

    def __init__(self) -> None:
        self._used: dict[int, Any] = {}
        state.use_hooks = (*state.use_hooks, self.note)

    def note(self, leaf: Any) -> None:
        """Take note of one."""
        self._used[id(leaf)] = leaf

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Nothing to do: every use is noted."""

    def used(self) -> list[Any]:
        """Return what was used since the last call."""
        found = list(self._used.values())
        self._used.clear()
        return found


def engine(model: Any, structure: Structure) -> str:
    return "pure"


def open_region() -> RecordingRegion:
    return RecordingRegion()


def close_region(region: Any) -> None:
    state.use_hooks = tuple(hook for hook in state.use_hooks if hook != region.note)


def is_recording() -> bool:
    return state.recording


def no_record() -> AbstractContextManager[Any]:
    return toygrad.no_record()


def trace(losses: Sequence[Any]) -> Graph:
    if not all(loss.tracked for loss in losses):
        raise NoGraphError
    return Graph(losses)


def vjp(
    graph: Any, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    arrays = [None if cotangent is None else cotangent.data for cotangent in cotangents]
    try:
        found = toygrad.pullback(graph.losses, arrays, targets, graph.nodes)
    except toygrad.ReleasedError as error:
        raise GraphReleasedError from error
    except toygrad.StaleError as error:
        raise StaleGraphError from error
    return [None if array is None else Tensor.of(array) for array in found]


def release(graph: Any) -> None:
    toygrad.release(graph.nodes)


def watch(tensor: Any) -> Any:
    if tensor.tracked:
        with state.changed(recording=True):
            return functions.alias(tensor)
    twin = Tensor.of(tensor.data, tensor.memory)
    twin.trainable = True
    return twin


def native_gradient(parameter: Any) -> Any | None:
    return parameter.grad


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    parameter.grad = gradient

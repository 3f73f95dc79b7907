"""Recording, reach, vector-Jacobian products and release over toygrad's graph. See ``unigrad.protocols.TapeModule``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import toygrad
from toygrad import Tensor

from unigrad.errors import GraphReleasedError, NoGraphError, StaleGraphError
from unigrad.protocols import Structure

recomputing = 0


class Graph:
    """Nodes below some losses, each after everything that uses it."""

    def __init__(self, losses: Sequence[Any]) -> None:
        self.losses = losses
        self.nodes: list[Any] = []
        self.released: str | None = None
        seen: set[int] = set()
        stack = [(loss, False) for loss in losses]
        while stack:
            node, done = stack.pop()
            if done:
                self.nodes.append(node)
            elif id(node) not in seen and node.requires_grad:
                seen.add(id(node))
                if node.released:
                    self.released = f"a tensor of shape {node.data.shape}"
                stack.append((node, True))
                stack += [(x, False) for x in node.inputs]
        self.nodes.reverse()

    @property
    def leaves(self) -> Sequence[Any]:
        """Leaves that the losses depend on."""
        return [node for node in self.nodes if node.is_leaf]


class RecordingRegion:
    """Takes note of every leaf in use."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        toygrad.use_hooks.append(self.leaves.append)
        self.hook = toygrad.use_hooks[-1]

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Nothing to do: every use is noted."""

    def used(self) -> list[Any]:
        """Return what was used since the last call."""
        found = list(self.leaves)
        self.leaves.clear()
        return found


def engine(model: Any, structure: Structure) -> str:
    return "pure"


def open_region() -> RecordingRegion:
    return RecordingRegion()


def close_region(region: Any) -> None:
    toygrad.use_hooks.remove(region.hook)


def is_recording() -> bool:
    return toygrad.recording


def no_record() -> AbstractContextManager[Any]:
    return toygrad.no_record()


def in_recompute() -> bool:
    return recomputing > 0


@contextlib.contextmanager
def recompute() -> Iterator[None]:
    """Record, whatever the backward was called under, and tell no observer: a recompute is no use of a parameter."""
    global recomputing
    before, hooks = toygrad.recording, toygrad.use_hooks
    recomputing += 1
    toygrad.recording, toygrad.use_hooks = True, []
    try:
        yield
    finally:
        recomputing -= 1
        toygrad.recording, toygrad.use_hooks = before, hooks


def trace(losses: Sequence[Any]) -> Graph:
    if not all(loss.requires_grad for loss in losses):
        raise NoGraphError(
            "nothing was recorded that leads to this loss: it is a constant, or was made outside the collector, "
            "with recording off, or from values without a graph (detached); run the forward inside the collector"
        )
    return Graph(losses)


def vjp(
    graph: Any, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    wanted = {id(target) for target in targets}
    for node in reversed(graph.nodes):  # inputs first: a node is on the way if one of its inputs is
        if any(id(x) in wanted for x in node.inputs):
            wanted.add(id(node))
    _refuse(graph, wanted)
    sums: dict[int, Any] = {}
    for loss, cotangent in zip(graph.losses, cotangents, strict=True):
        seed = np.ones_like(loss.data) if cotangent is None else cotangent.data
        sums[id(loss)] = sums[id(loss)] + seed if id(loss) in sums else seed
    for node in graph.nodes:
        if id(node) not in sums or node.pull is None:
            continue
        if not any(id(x) in wanted for x in node.inputs):
            continue
        for x, part in zip(node.inputs, node.pull(sums[id(node)]), strict=True):
            if part is not None and id(x) in wanted:
                sums[id(x)] = sums[id(x)] + part if id(x) in sums else part
    return [Tensor(sums[id(target)]) if id(target) in sums else None for target in targets]


def _refuse(graph: Any, wanted: set[int]) -> None:
    if graph.released is not None:
        raise GraphReleasedError(f"an earlier backward released {graph.released}; retain the graph there")
    for node in graph.nodes:
        if id(node) in wanted and tuple(x.version for x in node.inputs) != node.versions:
            raise StaleGraphError(
                f"an input of a tensor of shape {node.data.shape} was changed after the forward; run the forward again"
            )


def release(graph: Any) -> None:
    for node in graph.nodes:
        if not node.is_leaf:
            node.released, node.pull, node.inputs, node.versions = True, None, (), ()


def watch(tensor: Any) -> Any:
    if tensor.requires_grad:
        return toygrad.record(tensor.data, (tensor,), lambda c: (c,))
    return Tensor(tensor.data, requires_grad=True)


def native_gradient(parameter: Any) -> Any | None:
    return parameter.grad


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    parameter.grad = gradient

"""Record, which parameters a loss reaches, vector-Jacobian product, release. See ``unigrad.protocols.TapeModule``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from unigrad.errors import NoGraphError
from unigrad.protocols import Structure
from unigrad_numpy import graph as recorded
from unigrad_numpy import ops
from unigrad_numpy.graph import Node, enable_grad, no_grad, state, vector_jacobian_product, walk
from unigrad_numpy.tensor import Tensor, wrap


class Graph:
    """What some losses depend on."""

    def __init__(self, losses: Sequence[Tensor]) -> None:
        self.losses = losses
        self.walked = walk(losses)

    @property
    def leaves(self) -> Sequence[Tensor]:
        """Leaf tensors, each once."""
        return self.walked.leaves

    @property
    def nodes(self) -> Sequence[Node]:
        """Recorded operations, latest first."""
        return self.walked.nodes

    @property
    def released(self) -> str | None:
        """Name of a released operation."""
        return next((node.name for node in self.walked.nodes if node.released), None)


class Region:
    """Takes note of trainable leaves used in recorded operations."""

    def __init__(self) -> None:
        self._used: dict[int, Tensor] = {}
        self._observing = recorded.observe_uses(self._note)
        self._observing.__enter__()

    def _note(self, inputs: tuple[Tensor, ...]) -> None:
        for tensor in inputs:
            if tensor._requires_grad and tensor.node is None:
                self._used[id(tensor)] = tensor

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Nothing to do: every use is noted."""

    def used(self) -> list[Tensor]:
        """Return the leaves used since the last call."""
        found = list(self._used.values())
        self._used.clear()
        return found

    def close(self) -> None:
        """Stop."""
        self._observing.__exit__(None, None, None)


def engine(model: Any, structure: Structure) -> str:
    """Return ``"pure"``, the only one."""
    return "pure"


def open_region() -> Region:
    """Begin to take note of used leaves; recording itself is always on."""
    return Region()


def close_region(region: Region) -> None:
    """Undo ``open_region``."""
    region.close()


def is_recording() -> bool:
    """Whether operations on trainable tensors are recorded in this thread now."""
    return state.recording


def no_record() -> AbstractContextManager[Any]:
    """Run without recording in this thread."""
    manager: AbstractContextManager[Any] = no_grad()
    return manager


def trace(losses: Sequence[Any]) -> Graph:
    """Walk the graph below the losses; changes nothing."""
    for loss in losses:
        if not loss.requires_grad:
            raise NoGraphError(
                "nothing was recorded that leads to this loss: it is a constant, was detached (stop_gradient), depends "
                "on frozen parameters only, or was made "
                "where recording was off: under no_grad, or outside of this backend's operations, e.g. by NumPy itself"
            )
    return Graph(losses)


def vjp(
    graph: Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    """Return the vector-Jacobian product for each target, None where not reached; results share no memory."""
    vectors = [None if cotangent is None else cotangent._array for cotangent in cotangents]
    found = vector_jacobian_product(graph.losses, vectors, targets, graph.walked)
    return [None if array is None else wrap(array) for array in found]


def release(graph: Graph) -> None:
    """Mark every operation of the graph as released and drop what it saved."""
    recorded.release(graph.nodes)


def watch(tensor: Any) -> Any:
    """Return a new tensor of the same memory, needing a gradient, still connected to the tensor's own graph."""
    if tensor.requires_grad:
        with enable_grad():
            return ops.identity(tensor)
    twin = wrap(tensor._array, tensor._counter)
    twin.requires_grad = True
    return twin


def native_gradient(parameter: Any) -> Any | None:
    """Return ``parameter.grad``."""
    return parameter.grad


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    """Set ``parameter.grad``."""
    parameter.grad = gradient

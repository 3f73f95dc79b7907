"""``tape``: record, which parameters a loss reaches, vector-Jacobian product, release."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from unigrad.protocols.block import Structure

__all__ = ["Engine", "Graph", "NativeEngine", "RecordingRegion", "TapeModule"]


class Graph(Protocol):
    """The recorded graph below some losses."""

    @property
    def leaves(self) -> Sequence[Any]:
        """Leaf tensors that the losses depend on, each once: the very objects the model holds."""

    @property
    def released(self) -> str | None:
        """Name of a released node, or None if the whole graph is alive."""


class RecordingRegion(Protocol):
    """What ``open_region`` returns: it takes note of the leaves that recorded operations use."""

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Take note of the next use of each of these leaves, also of those used before.

        ``others`` asks for every other trainable leaf too, from now on: some parameters do not exist yet.
        """

    def used(self) -> Sequence[Any]:
        """Return the leaves used since the last call, each at least once; expected ones, and maybe more."""


class TapeModule(Protocol):
    """``tape``: record, which parameters a loss reaches, vector-Jacobian product, release."""

    def engine(self, model: Any, structure: Structure) -> str:
        """Name of the engine that serves this (not unwrapped) model, ``"pure"`` by default; ``UnsupportedError`` for what it cannot serve.

        ``model`` is None for a block made of a mapping of tensors; ``structure`` is the present one of the block.
        """

    def open_region(self) -> RecordingRegion:
        """Start recording for this thread.

        Called once per thread by the core, however many collectors are open. Raises if recording is impossible here (inside a
        compiled step).
        """

    def close_region(self, region: Any) -> None:
        """Undo ``open_region``."""

    def is_recording(self) -> bool:
        """Whether operations on trainable tensors are recorded in this thread now."""

    def no_record(self) -> AbstractContextManager[Any]:
        """Run without recording in this thread."""

    def trace(self, losses: Sequence[Any]) -> Graph:
        """Walk the graph below the losses; changes nothing. ``NoGraphError`` if a loss has no graph."""

    def vjp(
        self, graph: Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
    ) -> list[Any | None]:
        """Return the vector-Jacobian product for each target, None where not reached; native ``.grad`` is untouched.

        Targets are leaves or watched tensors. A cotangent is None for a loss of one element. Only what leads to a target is computed.
        Results may share memory with each other (the core copies before handing out) but not with anything else that
        is written later. On error nothing has changed; a changed saved value is ``StaleGraphError``, a released part
        ``GraphReleasedError``.
        """

    def release(self, graph: Graph) -> None:
        """Mark every node of the graph, leaves excepted, as released and free what it saved where the framework allows."""

    def watch(self, tensor: Any) -> Any:
        """Return a new tensor of the same values, needing a gradient, still connected to the tensor's own graph; alters nothing."""

    def native_gradient(self, parameter: Any) -> Any | None:
        """Return the gradient where the framework's own tools look."""

    def set_native_gradient(self, parameter: Any, gradient: Any | None) -> None:
        """Put the gradient (not copied) where the framework's own tools look."""


class Engine(Protocol):
    """What differentiates for a collector: the module ``tape`` itself, or a :class:`NativeEngine`."""

    def trace(self, losses: Sequence[Any]) -> Graph:
        """See :meth:`TapeModule.trace`."""

    def vjp(
        self, graph: Any, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
    ) -> list[Any | None]:
        """See :meth:`TapeModule.vjp`."""

    def release(self, graph: Any) -> None:
        """See :meth:`TapeModule.release`."""


class NativeEngine(Engine, Protocol):
    """An engine that lets the framework write gradients where its own tools look, and takes them from there.

    It serves one collector. A backend whose ``tape.engine`` names another engine than ``"pure"`` may have a function ``native()`` in
    its module ``tape`` that returns one; without it the functions of ``tape`` serve every engine. All that the protocol of
    ``tape`` promises holds: native gradients are afterwards as they were, and on error nothing has changed.
    """

    def enter(self, leaves: Sequence[Any]) -> None:
        """Begin to watch forwards of a block with these leaves; called when the collector is entered."""

    def close(self) -> None:
        """Undo ``enter``; what was collected stays."""

    def begin(self, leaves: Sequence[Any], accumulate: str, parameters: bool, weight: float | None) -> None:
        """Be told of the backward that follows: the block's leaves, the collector's mode, whether parameter gradients are wanted.

        ``UnsupportedError`` or ``UnreducedError`` for one that it cannot serve.
        """

    def require_reduced(self) -> None:
        """Raise ``UnreducedError`` if some of the gradients so far have not been exchanged between processes."""

    def forget(self) -> None:
        """Drop what was collected and not yet returned."""

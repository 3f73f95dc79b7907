"""``checkpoint``: recompute by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from unigrad.protocols.block import Entry

__all__ = ["CheckpointModule", "Region"]


class Region(Protocol):
    """One call of a checkpointed function, as the core hands it to a backend."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function to run, now and again in the recompute."""

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments, nested, holding tensors and others."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments, nested, holding tensors and others."""

    @property
    def parameters(self) -> Sequence[Any]:
        """Trainable parameters of the blocks of the region."""

    @property
    def shared(self) -> dict[Any, Any] | None:
        """What the regions of one call of ``microbatch`` share, empty at first; None for any other region.

        A backend may keep there what one part of the batch leaves for the next.
        """

    @property
    def places(self) -> Sequence[Entry]:
        """Every place in a native model that holds a parameter of these blocks, also a frozen one."""

    @property
    def buffers(self) -> Sequence[Entry]:
        """Every place that holds a buffer of these blocks, with the tensor that was there when the call began.

        In a recompute copies without a graph stand there; a backend puts something else in their place where a buffer needs a gradient.
        """

    def let_go(self) -> None:
        """Drop ``args`` and ``kwargs``, for a backend that keeps what it needs of them by means of its own.

        Inside another region tensors among them are inner values of that one, which this object would keep alive.
        """

    def replay(self) -> AbstractContextManager[None]:
        """Surround a recompute: random state, buffers, modes and versions as they were at the forward.

        Re-enterable: a new context manager on each call, several and nested recomputes.
        """

    def finish(self, outputs: Any) -> None:
        """Take the fingerprint of the forward's outputs; the backend calls it right after the forward."""

    def check(self, outputs: Any) -> None:
        """Raise ``RecomputeMismatchError`` unless the recomputed outputs are those of the forward."""


class CheckpointModule(Protocol):
    """``checkpoint``: recompute by the framework's own means.

    A function ``refuse_arguments(leaves)`` may stand here too: it raises ``UnsupportedError`` for an argument of a region with which
    there is nothing to recompute, recorded or not. So may ``part(shared)``, a context manager around the call of each part of a
    batch, recorded or not, with the dictionary that is ``Region.shared``: for what a framework would let a part do to those before it.
    """

    def run(self, region: Region) -> Any:
        """Run the region so that only inputs, outputs and what the region object holds are kept until backward.

        Calls ``region.function`` once now, ``region.finish(outputs)`` after it, and in a backward that needs the inner
        values: ``with region.replay(): outputs = function(...)`` in the forward's mixed-precision context, then
        ``region.check(outputs)``. Exceptions of the function keep their type. Raises ``CapturedTensorError`` at the forward
        for a tensor that needs a gradient, is no leaf, and is neither an argument nor made inside, ``CreatedParameterError`` for a
        parameter that the function creates again in the recompute.
        """

    def fingerprint(self, tensor: Any) -> Hashable:
        """Return a small value that differs, with near certainty, if any bit of the tensor differs; sensitive to position."""

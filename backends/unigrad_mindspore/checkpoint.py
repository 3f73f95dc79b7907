"""Recompute by MindSpore's hooks on saved tensors; see :mod:`unigrad.saved`.

MindSpore's own recompute functions draw new dropout masks and move statistics twice; they are not used.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import ExitStack
from typing import Any

import mindspore
from mindspore import Tensor

from unigrad import tree
from unigrad.errors import RecomputeMismatchError, StaleGraphError, UnsupportedError
from unigrad.fingerprint import digest
from unigrad.protocols import Region
from unigrad.recompute import in_recompute
from unigrad.saved import Forward, Frame, Kept, Recompute, Stop, receiving, unpack
from unigrad_mindspore import dispatch
from unigrad_mindspore.arrays import requires_gradient, view
from unigrad_mindspore.captures import border_of, reached, refuse
from unigrad_mindspore.kernels import explained
from unigrad_mindspore.passes import clear_at_end, keeps
from unigrad_mindspore.precision import Precision, kept
from unigrad_mindspore.pynative import recorded, recording
from unigrad_mindspore.threads import explained_mismatch
from unigrad_mindspore.versions import next_number

__all__ = ["fingerprint", "run"]


class _Found:
    """What stands in the graph of a recompute, which the function itself may differentiate."""

    __slots__ = ("index", "items")

    def __init__(self, items: dict[int, Kept], index: int) -> None:
        self.items = items
        self.index = index

    def get(self) -> Any:
        return self.items[self.index].get()


class _Kept:
    """A tensor that a recompute saved."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.version = tensor._version

    def get(self) -> Any:
        # MindSpore looks at the versions of what it saves itself, and not of what a hook gives back
        if self.tensor._version != self.version:
            raise StaleGraphError(
                f"the checkpointed function changes a value of shape {tuple(self.tensor.shape)} in place that its gradient needs; let it "
                "work on a copy"
            )
        return self.tensor


class _Recompute(Recompute):
    def save(self, item: Any, metadata: tuple[Any, ...]) -> _Found:
        """Take an item. The graph of the recompute keeps its position only: the item may be held by its own node."""
        super().save(item, metadata)
        return _Found(self.found, self.count - 1)


def _hooks(receiver: list[Forward | Recompute]) -> mindspore.saved_tensors_hooks:
    def pack(tensor: Any) -> Kept:
        return receiver[0].save(tensor, (tuple(tensor.shape), str(tensor.dtype)))

    return mindspore.saved_tensors_hooks(pack, unpack)


def _version(leaf: Any) -> int | None:
    return leaf._version if isinstance(leaf, Tensor) else None


class _Frame(Frame):
    def __init__(self, region: Region) -> None:
        super().__init__(region, _version)
        self.precision = Precision.now()
        self.known: dict[int, Any] = {}
        self.values: dict[int, dict[int, Kept]] = {}
        keeps(self)

    def take(self, index: int) -> Kept:
        values = self.values.get(threading.get_ident(), {})
        if index not in values:
            values = self.recompute(None if self.complete else index)
            self.values[threading.get_ident()] = values
            clear_at_end(self)
        return values.pop(index)

    def clear(self) -> None:
        """Drop what a backward of this thread did not ask for."""
        self.values.pop(threading.get_ident(), {}).clear()

    def recompute(self, last: int | None) -> dict[int, Kept]:
        """Run the function again; ``last`` ends it early, where a gradient is asked for while the forward still runs."""
        if recording():
            raise UnsupportedError(
                "backend 'mindspore' does not support second order through a checkpoint. If none was asked for: a gradient call of "
                "MindSpore's own that failed before this one has left recording on; call again, it is off now"
            )
        self.require_unchanged()
        recorder = _Recompute(self, last, _Kept)
        try:
            self.rerun(recorder)
        except BaseException:
            recorder.found.clear()  # nodes of the recompute hold it, and it holds what they are held by
            raise
        return recorder.found

    def rerun(self, recorder: Recompute) -> None:
        """Run the function for a recorder, as the forward was run."""
        with ExitStack() as contexts:
            contexts.enter_context(self.region.replay())
            contexts.enter_context(self.precision.again())
            contexts.enter_context(dispatch.unobserved())
            contexts.enter_context(dispatch.repeatable())
            contexts.enter_context(recorded())
            contexts.enter_context(receiving(recorder, _hooks))
            try:
                outputs = self.again()
            except Stop:
                return
        leaves, _ = reached(_tensors(outputs), self.border(), None)
        created = [node.name() for number, node in leaves.items() if number not in self.known]
        try:
            self.check(outputs, recorder, created)
        except RecomputeMismatchError as error:
            raise explained_mismatch(error) from None

    def border(self) -> dict[tuple[int, int], Any]:
        """Return the places at which the arguments enter the graph."""
        return border_of([tensor for _, tensor, _ in self.arguments])


def _tensors(outputs: Any) -> list[Any]:
    return [
        leaf
        for leaf in tree.flatten(outputs)[0]
        if isinstance(leaf, Tensor) and requires_gradient(leaf) and leaf._grad_node is not None
    ]


@explained()
def run(region: Region) -> Any:
    """Run the region so that of its inner values nothing is kept until a backward."""
    if not recording():
        return region.function(*region.args, **region.kwargs)
    frame = _Frame(region)
    border, since = frame.border(), next_number()
    recorder = Forward(frame)
    with kept(), dispatch.repeatable(), receiving(recorder, _hooks):
        outputs = region.function(*region.args, **region.kwargs)
    leaves, captured = reached(_tensors(outputs), border, None if in_recompute() else since)
    if captured is not None:
        refuse(region.function, captured)
    frame.known = leaves | {node._unique_id(): node for p in region.parameters if (node := p._grad_node) is not None}
    frame.end(recorder, outputs)
    return outputs


def fingerprint(tensor: Any) -> Hashable:
    """Return a digest of the bits of the tensor."""
    return digest(view(tensor))

"""Recompute by hooks on saved tensors: the recorded graph is the plain one, its inner values come from a second run.

In the forward each tensor that MindSpore saves is replaced by a handle: a region and a position. When a backward asks for one, the
function runs again and its saved tensors, taken in the same order, answer for all handles of the region. Since the graph is the
real one, gradients are bit-equal and dependence is exact. MindSpore's own recompute functions draw new dropout masks and move
statistics twice; they are not used.

Regions nest: what an inner region saves during the outer's forward is a handle of the outer one, so that nothing of the inner
region is kept; in the outer's recompute the inner region is a new one, and its handles answer for the outer's.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from unigrad import tree
from unigrad.errors import CreatedParameterError, RecomputeMismatchError, StaleGraphError, UnsupportedError
from unigrad.protocols import Region
from unigrad.recompute import in_recompute
from unigrad_mindspore import dispatch
from unigrad_mindspore.arrays import requires_gradient, view
from unigrad_mindspore.captures import border_of, reached, refuse
from unigrad_mindspore.kernels import explained
from unigrad_mindspore.passes import clear_at_end, keeps
from unigrad_mindspore.precision import Precision, kept
from unigrad_mindspore.pynative import recorded, recording
from unigrad_mindspore.versions import next_number

__all__ = ["fingerprint", "run"]

Metadata = tuple[tuple[int, ...], str]


class _Current(threading.local):
    recorder: _Forward | _Recompute | None = None


_current = _Current()


class _Stop(BaseException):
    """The part of a region that was asked for is there."""


class _Handle:
    """What stands in the graph for a saved tensor."""

    __slots__ = ("frame", "index")

    def __init__(self, frame: _Frame, index: int) -> None:
        self.frame = frame
        self.index = index

    def get(self) -> Any:
        return self.frame.take(self.index).get()


class _Forward:
    """Records what a region saves in its forward."""

    def __init__(self, frame: _Frame, parent: _Forward | _Recompute | None) -> None:
        self.frame = frame
        self.parent = parent
        # within the forward of an outer region only the outer's handles are kept
        self.dropped = isinstance(parent, _Forward)

    def save(self, item: Any, metadata: Metadata) -> Any:
        handle = _Handle(self.frame, len(self.frame.saved))
        self.frame.saved.append(metadata)
        return handle if self.parent is None else self.parent.save(handle, metadata)


class _Found:
    """What stands in the graph of a recompute, which the function itself may differentiate."""

    __slots__ = ("index", "items")

    def __init__(self, items: dict[int, _Handle | _Kept], index: int) -> None:
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


class _Recompute:
    """Takes the tensors that a region saves in a recompute, and compares what is known of them."""

    def __init__(self, frame: _Frame, last: int | None) -> None:
        self.frame = frame
        self.found: dict[int, _Handle | _Kept] = {}
        self.count = 0
        self.last = last

    def save(self, item: Any, metadata: Metadata) -> _Found:
        """Take an item. The graph of the recompute keeps its position only: the item may be held by its own node."""
        index = self.count
        self.count += 1
        saved = self.frame.saved
        if index >= len(saved):
            raise _mismatch(f"it saved more than {len(saved)} tensors", _text(None), _text(metadata))
        if saved[index] != metadata:
            raise _mismatch(f"the saved tensor at position {index}", _text(saved[index]), _text(metadata))
        self.found[index] = _Kept(item) if isinstance(item, Tensor) else item
        if index == self.last:
            raise _Stop
        return _Found(self.found, index)


def _text(metadata: Metadata | None) -> str:
    if metadata is None:
        return "none there"
    return f"shape {metadata[0]}, {metadata[1]}"


def _mismatch(what: str, forward: str, recompute: str) -> RecomputeMismatchError:
    return RecomputeMismatchError(
        f"the recompute of a checkpointed region is not its forward: {what}; forward: {forward}; recompute: {recompute}. "
        "The function must do the same on each call: look for counters, flags and caches that it reads or changes"
    )


@contextmanager
def _recording(recorder: _Forward | _Recompute) -> Iterator[None]:
    """Let a recorder receive every tensor saved in this thread."""
    receiver = [recorder]

    def pack(tensor: Any) -> Any:
        return receiver[0].save(tensor, (tuple(tensor.shape), str(tensor.dtype)))

    before = _current.recorder
    _current.recorder = recorder
    try:
        with mindspore.saved_tensors_hooks(pack, _unpack):
            yield
    finally:
        _current.recorder = before
        # MindSpore keeps the hook with every saved tensor, and with it the arguments of an inner region
        receiver.clear()


def _unpack(item: _Handle | _Found) -> Any:
    return item.get()


class _Frame:
    """One call of a checkpointed function: held by its handles, holding no graph of its own."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.saved: list[Metadata] = []
        self.complete = False
        call = (region.args, region.kwargs)
        leaves, layout = tree.flatten(call)
        # of containers of its own: the function or its caller may change those that were given
        self.call = layout, leaves, tree.unflatten(layout, leaves, call)
        self.arguments = [
            (name, leaf, leaf._version)
            for name, leaf in zip(layout.paths("argument"), leaves, strict=True)
            if isinstance(leaf, Tensor)
        ]
        self.precision = Precision.now()
        keeps(self)
        self.known: dict[int, Any] = {}
        self.values: dict[int, dict[int, _Handle | _Kept]] = {}

    def changed(self) -> str | None:
        """Name of an argument that was changed in place since the region began."""
        return next((name for name, tensor, version in self.arguments if tensor._version != version), None)

    def take(self, index: int) -> _Handle | _Kept:
        """Return what a handle stands for, recomputing the region if this backward has not done so."""
        values = self.values.get(threading.get_ident(), {})
        if index not in values:
            values = self.recompute(None if self.complete else index)
            self.values[threading.get_ident()] = values
            clear_at_end(self)
        return values.pop(index)

    def clear(self) -> None:
        """Drop what a backward of this thread did not ask for."""
        self.values.pop(threading.get_ident(), {}).clear()

    def recompute(self, last: int | None) -> dict[int, _Handle | _Kept]:
        """Run the function again; ``last`` ends it early, where a gradient is asked for while the forward still runs."""
        if recording():
            raise UnsupportedError("backend 'mindspore' does not support second order through a checkpoint")
        name = self.changed()
        if name is not None:
            raise StaleGraphError(
                f"{name} of a checkpointed function was changed in place between forward and backward; "
                "run the forward again, or give it a copy"
            )
        recorder = _Recompute(self, last)
        try:
            self.rerun(recorder)
        except BaseException:
            recorder.found.clear()  # nodes of the recompute hold it, and it holds what they are held by
            raise
        return recorder.found

    def rerun(self, recorder: _Recompute) -> None:
        """Run the function for a recorder, as the forward was run."""
        region = self.region
        with ExitStack() as contexts:
            contexts.enter_context(region.replay())
            contexts.enter_context(self.precision.again())
            contexts.enter_context(dispatch.unobserved())
            contexts.enter_context(dispatch.repeatable())
            contexts.enter_context(recorded())
            contexts.enter_context(_recording(recorder))
            try:
                args, kwargs = tree.unflatten(*self.call)
                outputs = region.function(*args, **kwargs)
            except _Stop:
                return
        self.check(outputs, recorder)

    def check(self, outputs: Any, recorder: _Recompute) -> None:
        """Compare a recompute with the forward."""
        leaves, _ = reached(_tensors(outputs), self.border(), None)
        created = [node.name() for number, node in leaves.items() if number not in self.known]
        if created:
            raise CreatedParameterError(
                f"the checkpointed function creates parameters on each call ({', '.join(created)}), so that what the gradient "
                "belongs to is thrown away; create the layer once, outside of the function"
            )
        if recorder.count < len(self.saved):
            raise _mismatch(
                f"it saved {recorder.count} tensors instead of {len(self.saved)}, position {recorder.count} is missing",
                _text(self.saved[recorder.count]),
                _text(None),
            )
        self.region.check(outputs)

    def border(self) -> dict[tuple[int, int], Any]:
        """Return the places at which the arguments enter the graph."""
        return border_of([tensor for _, tensor, _ in self.arguments])


def _tensors(outputs: Any) -> list[Any]:
    return [
        leaf
        for leaf in tree.flatten(outputs)[0]
        if isinstance(leaf, Tensor) and requires_gradient(leaf) and leaf._grad_node is not None
    ]


def run(region: Region) -> Any:
    """Run the region so that of its inner values nothing is kept until a backward."""
    if not recording():
        return region.function(*region.args, **region.kwargs)
    frame = _Frame(region)
    border, since = frame.border(), next_number()
    recorder = _Forward(frame, _current.recorder)
    with explained(), kept(), dispatch.repeatable(), _recording(recorder):
        outputs = region.function(*region.args, **region.kwargs)
    leaves, captured = reached(_tensors(outputs), border, None if in_recompute() else since)
    if captured is not None:
        refuse(region.function, captured)
    name = frame.changed()
    if name is not None and frame.saved:
        raise UnsupportedError(
            f"the checkpointed function changes {name} in place, so that it cannot be run again; let it work on a copy"
        )
    frame.known = leaves | {node._unique_id(): node for p in region.parameters if (node := p._grad_node) is not None}
    frame.complete = True
    if frame.saved and not recorder.dropped:
        region.finish(outputs)
    return outputs


def fingerprint(tensor: Any) -> Hashable:
    """Return a hash of the bits of the tensor."""
    bits = np.ascontiguousarray(view(tensor)).reshape(-1).view(np.uint8)
    return hashlib.blake2b(bits, digest_size=16).digest()

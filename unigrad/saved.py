"""Recompute by hooks on saved tensors: the recorded graph is the plain one, its inner values come from a second run.

For frameworks that have such hooks. In the forward each tensor that the framework saves is replaced by a handle: a region and a
position. When a backward asks for one, the function runs again and its saved tensors, taken in the same order, answer for all
handles of the region. Since the graph is the real one, gradients are bit-equal and dependence is exact.

Regions nest: what an inner region saves during the outer's forward is a handle of the outer one, so that nothing of the inner
region is kept; in the outer's recompute the inner region is a new one, and its handles answer for the outer's.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from unigrad import tree
from unigrad.protocols import Region
from unigrad.region_errors import argument_changed, argument_written, other_recompute, parameters_created

__all__ = ["Forward", "Frame", "Handle", "Kept", "Recompute", "Stop", "receiving", "unpack"]


class Kept(Protocol):
    """What answers for a saved tensor."""

    def get(self) -> Any:
        """Return the tensor."""


class Stop(BaseException):
    """The part of a region that was asked for is there."""


class Handle:
    """What stands in the graph for a saved tensor."""

    __slots__ = ("frame", "index")

    def __init__(self, frame: Frame, index: int) -> None:
        self.frame = frame
        self.index = index

    def get(self) -> Any:
        """Return the tensor of this backward."""
        return self.frame.take(self.index).get()


def unpack(item: Kept) -> Any:
    """Return the tensor that the framework had packed."""
    return item.get()


class Forward:
    """Records what a region saves in its forward."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.parent = _current.recorder
        # within the forward of an outer region only the outer's handles are kept
        self.dropped = isinstance(self.parent, Forward)

    def save(self, item: Any, metadata: tuple[Any, ...]) -> Kept:
        """Return what is to stand in the graph for a tensor, or for a handle of an inner region.

        Parameters
        ----------
        item
            The tensor or handle.
        metadata
            What is compared of the tensor: its shape, and more that can be printed.
        """
        handle = Handle(self.frame, len(self.frame.saved))
        self.frame.saved.append(metadata)
        return handle if self.parent is None else self.parent.save(handle, metadata)


class Recompute:
    """Takes the tensors that a region saves in a recompute, and compares what is known of them.

    Parameters
    ----------
    frame
        The call.
    last
        The position at which to stop; None for the whole function.
    keep
        Returns what keeps a tensor.
    """

    def __init__(self, frame: Frame, last: int | None, keep: Callable[[Any], Kept]) -> None:
        self.frame = frame
        self.found: dict[int, Kept] = {}
        self.count = 0
        self.last = last
        self.keep = keep

    def save(self, item: Any, metadata: tuple[Any, ...]) -> Kept:
        """Take a tensor or handle; see :meth:`Forward.save`."""
        index = self.count
        self.count += 1
        saved = self.frame.saved
        if index >= len(saved):
            raise other_recompute(f"it saved more than {len(saved)} tensors", _text(None), _text(metadata))
        if saved[index] != metadata:
            raise other_recompute(f"the saved tensor at position {index}", _text(saved[index]), _text(metadata))
        kept = self.found[index] = item if isinstance(item, Handle) else self.keep(item)
        if index == self.last:
            raise Stop
        return kept


def _text(metadata: tuple[Any, ...] | None) -> str:
    if metadata is None:
        return "none there"
    return ", ".join([f"shape {tuple(metadata[0])}", *map(str, metadata[1:])])


class _Current(threading.local):
    recorder: Forward | Recompute | None = None


_current = _Current()


@contextmanager
def receiving(
    recorder: Forward | Recompute, hooks: Callable[[list[Forward | Recompute]], AbstractContextManager[Any]]
) -> Iterator[None]:
    """Let a recorder receive every tensor saved in this thread.

    Parameters
    ----------
    recorder
        The recorder.
    hooks
        Returns the context in which the framework gives each tensor to the one recorder of a list.
    """
    receiver = [recorder]
    before = _current.recorder
    _current.recorder = recorder
    try:
        with hooks(receiver):
            yield
    finally:
        _current.recorder = before
        # a framework keeps the hook with every saved tensor, and with it the arguments of an inner region
        receiver.clear()


class Frame(ABC):
    """One call of a checkpointed function: held by its handles, holding no graph of its own.

    Parameters
    ----------
    region
        The region.
    version
        Returns what changes when an argument is written; None for what is no tensor, or has no such thing.
    """

    def __init__(self, region: Region, version: Callable[[Any], int | None]) -> None:
        self.region = region
        self.saved: list[tuple[Any, ...]] = []
        self.complete = False
        call = (region.args, region.kwargs)
        leaves, layout = tree.flatten(call)
        # of containers of its own: the function or its caller may change those that were given
        self._call = layout, leaves, tree.unflatten(layout, leaves, call)
        self._version = version
        versions = zip(layout.paths("argument"), leaves, map(version, leaves), strict=True)
        self.arguments = [(name, leaf, found) for name, leaf, found in versions if found is not None]

    @abstractmethod
    def take(self, index: int) -> Kept:
        """Return what answers for a handle, recomputing the region if this backward has not done so."""

    def changed(self) -> str | None:
        """Name of an argument that was changed in place since the region began."""
        return next((name for name, leaf, found in self.arguments if self._version(leaf) != found), None)

    def require_unchanged(self) -> None:
        """Raise ``StaleGraphError`` naming an argument that was changed in place since the region began."""
        name = self.changed()
        if name is not None:
            raise argument_changed(name)

    def again(self) -> Any:
        """Call the function with the arguments of the forward."""
        args, kwargs = tree.unflatten(*self._call)
        return self.region.function(*args, **kwargs)

    def end(self, recorder: Forward, outputs: Any) -> None:
        """Take note that the forward is over."""
        name = self.changed()
        if name is not None and self.saved:
            raise argument_written(name)
        self.complete = True
        if self.saved and not recorder.dropped:
            self.region.finish(outputs)

    def check(self, outputs: Any, recorder: Recompute, created: Iterable[str]) -> None:
        """Raise unless a recompute was the forward again.

        Parameters
        ----------
        outputs
            Of the function.
        recorder
            What received the saved tensors.
        created
            Parameters that the forward did not know.
        """
        names = list(created)
        if names:
            raise parameters_created(names)
        count = recorder.count
        if count < len(self.saved):
            what = f"it saved {count} tensors instead of {len(self.saved)}, position {count} is missing"
            raise other_recompute(what, _text(self.saved[count]), _text(None))
        self.region.check(outputs)

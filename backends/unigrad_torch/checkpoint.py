"""Recompute by hooks on saved tensors: the recorded graph is the plain one, its inner values come from a second run.

In the forward each tensor that torch saves is replaced by a handle: a region and a position. When a backward asks for one, the
function runs again and its saved tensors, taken in the same order, answer for all handles of the region until the end of
that backward. Since the graph is the real one, gradients are bit-equal, dependence is exact, and second order works.

Regions nest: what an inner region saves during the outer's forward is a handle of the outer one, so that nothing of the inner
region is kept; in the outer's recompute the inner region is a new one, and its handles answer for the outer's.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter

from unigrad import tree
from unigrad.errors import CreatedParameterError, RecomputeMismatchError, StaleGraphError, UnsupportedError
from unigrad.protocols import Region
from unigrad.recompute import in_recompute
from unigrad_torch.captures import edges, reached, refuse, registrations, sequence_number
from unigrad_torch.compiled import refuse_compiled
from unigrad_torch.fingerprint import fingerprint
from unigrad_torch.marks import unnoticed
from unigrad_torch.precision import Precision

__all__ = ["fingerprint", "run"]

Metadata = tuple[torch.Size, torch.dtype, torch.device]


class _Current(threading.local):
    recorder: _Forward | _Recompute | None = None


_current = _Current()


class _Stop(BaseException):
    """The part of a region that was asked for is there."""


class _Saved:
    """A tensor saved in a recompute, without its graph, and the version it was saved at."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self.version = tensor._version

    def get(self) -> Tensor:
        if self.tensor._version != self.version:
            raise StaleGraphError(
                "a value needed for the gradient was changed in place inside a checkpointed function after its use "
                f"(shape {tuple(self.tensor.shape)}); without the checkpoint torch refuses this too"
            )
        return self.tensor


class _Handle:
    """What stands in the graph for a saved tensor."""

    __slots__ = ("frame", "index")

    def __init__(self, frame: _Frame, index: int) -> None:
        self.frame = frame
        self.index = index

    def get(self) -> Tensor:
        return self.frame.take(self.index).get()


class _Forward:
    """Records what a region saves in its forward."""

    def __init__(self, frame: _Frame, parent: _Forward | _Recompute | None) -> None:
        self.frame = frame
        self.parent = parent
        # within the forward of an outer region only the outer's handles are kept
        self.dropped = isinstance(parent, _Forward)

    def save(self, item: _Saved | _Handle | Tensor, metadata: Metadata) -> _Saved | _Handle:
        handle = _Handle(self.frame, len(self.frame.saved))
        self.frame.saved.append(metadata)
        return handle if self.parent is None else self.parent.save(handle, metadata)


class _Recompute:
    """Takes the tensors that a region saves in a recompute, and compares what is known of them."""

    def __init__(self, frame: _Frame, last: int | None) -> None:
        self.frame = frame
        self.found: dict[int, _Saved | _Handle] = {}
        self.count = 0
        self.last = last

    def save(self, item: _Saved | _Handle | Tensor, metadata: Metadata) -> _Saved | _Handle:
        index = self.count
        self.count += 1
        saved = self.frame.saved
        if index >= len(saved):
            raise _mismatch(f"it saved more than {len(saved)} tensors", _text(None), _text(metadata))
        if saved[index] != metadata:
            raise _mismatch(f"the saved tensor at position {index}", _text(saved[index]), _text(metadata))
        if isinstance(item, Tensor):
            item = _Saved(item)
        self.found[index] = item
        if index == self.last:
            raise _Stop
        return item


def _text(metadata: Metadata | None) -> str:
    if metadata is None:
        return "none there"
    shape, dtype, device = metadata
    return f"shape {tuple(shape)}, {dtype}, {device}"


def _mismatch(what: str, forward: str, recompute: str) -> RecomputeMismatchError:
    return RecomputeMismatchError(
        f"the recompute of a checkpointed region is not its forward: {what}; forward: {forward}; recompute: {recompute}. "
        "The function must do the same on each call: look for counters, flags and caches that it reads or changes"
    )


@contextmanager
def _recording(recorder: _Forward | _Recompute) -> Iterator[None]:
    """Let a recorder receive every tensor saved in this thread."""
    receiver = [recorder]

    def pack(tensor: Tensor) -> _Saved | _Handle:
        return receiver[0].save(tensor, (tensor.shape, tensor.dtype, tensor.device))

    before = _current.recorder
    _current.recorder = recorder
    try:
        with saved_tensors_hooks(pack, _unpack):
            yield
    finally:
        _current.recorder = before
        # torch keeps the hook with every saved tensor, and with it the arguments of an inner region
        receiver.clear()


def _unpack(item: _Saved | _Handle) -> Tensor:
    return item.get()


class _Frame:
    """One call of a checkpointed function: held by its handles, holding no graph of its own."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.saved: list[Metadata] = []
        self.complete = False
        self.precision = Precision()
        call = (region.args, region.kwargs)
        leaves, layout = tree.flatten(call)
        # of containers of its own: the function or its caller may change those that were given
        self.call = layout, leaves, tree.unflatten(layout, leaves, call)
        self.arguments = [
            (name, leaf, leaf._version)
            for name, leaf in zip(layout.paths("argument"), leaves, strict=True)
            if isinstance(leaf, Tensor) and not leaf.is_inference()
        ]
        self.known: dict[int, Tensor] = {}
        self.values: dict[int, tuple[int, dict[int, _Saved | _Handle]]] = {}

    def changed(self) -> str | None:
        """Name of an argument that was changed in place since the region began."""
        return next((name for name, tensor, version in self.arguments if tensor._version != version), None)

    def take(self, index: int) -> _Saved | _Handle:
        """Return the value of a handle, recomputing the region if this backward has not done so."""
        thread, task = threading.get_ident(), torch._C._current_graph_task_id()
        known, values = self.values.get(thread, (-1, {}))
        if known != task or index not in values:
            values = self.recompute(None if self.complete else index)
            if task != -1:  # -1: a look at a saved tensor outside of any backward
                self.values[thread] = (task, values)
                # weakly: the callback lives to the end of the backward, and a region's inputs need not
                frame = weakref.ref(self)
                torch.autograd.Variable._execution_engine.queue_callback(lambda: _forget(frame, thread, task))
        return values.pop(index)

    def recompute(self, last: int | None) -> dict[int, _Saved | _Handle]:
        """Run the function again; ``last`` ends it early, where a gradient is asked for while the forward still runs."""
        name = self.changed()
        if name is not None:
            raise StaleGraphError(
                f"{name} of a checkpointed function was changed in place between forward and backward; "
                "run the forward again, or give it a copy"
            )
        region, recorder = self.region, _Recompute(self, last)
        with ExitStack() as contexts:
            contexts.enter_context(torch.inference_mode(False))  # a backward works under it too
            contexts.enter_context(region.replay())
            contexts.enter_context(self.precision.restored())
            contexts.enter_context(unnoticed())
            contexts.enter_context(torch.enable_grad())
            registered = contexts.enter_context(registrations())
            contexts.enter_context(_recording(recorder))
            try:
                args, kwargs = tree.unflatten(*self.call)
                outputs = region.function(*args, **kwargs)
            except _Stop:
                return recorder.found
        self.check(outputs, recorder, registered)
        return recorder.found

    def check(self, outputs: Any, recorder: _Recompute, registered: list[tuple[str, Parameter]]) -> None:
        """Compare a recompute with the forward."""
        known = self.known.keys() | {id(parameter) for parameter in self.region.parameters}
        made = {id(parameter): name for name, parameter in registered if isinstance(parameter, Parameter)}
        leaves, _ = reached(_tensors(outputs), self.border(), None)
        made |= {id(leaf): "" for leaf in leaves if isinstance(leaf, Parameter) and id(leaf) not in made}
        created = [name or "one of no module" for key, name in made.items() if key not in known]
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

    def border(self) -> set[tuple[Any, int]]:
        """Return the edges at which the arguments enter the graph."""
        return edges([tensor for _, tensor, _ in self.arguments])


def _forget(frame: weakref.ref[_Frame], thread: int, task: int) -> None:
    """Drop what a backward did not ask for, at its end."""
    alive = frame()
    if alive is not None and alive.values.get(thread, (-1, None))[0] == task:
        del alive.values[thread]


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in tree.flatten(outputs)[0] if isinstance(leaf, Tensor) and leaf.requires_grad]


def run(region: Region) -> Any:
    """Run the region so that of its inner values nothing is kept until a backward."""
    refuse_compiled("a checkpoint")
    if not torch.is_grad_enabled():
        return region.function(*region.args, **region.kwargs)
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        raise UnsupportedError(
            "a checkpoint does not work inside torch.func transforms, which allow no saved-tensor hooks"
        )
    frame = _Frame(region)
    border, since = frame.border(), sequence_number()
    recorder = _Forward(frame, _current.recorder)
    with registrations() as registered, _recording(recorder):
        outputs = region.function(*region.args, **region.kwargs)
    leaves, captured = reached(_tensors(outputs), border, None if in_recompute() else since)
    if captured is not None:
        refuse(region.function, captured)
    name = frame.changed()
    if name is not None and frame.saved:
        raise UnsupportedError(
            f"the checkpointed function changes {name} in place, so that it cannot be run again; let it work on a copy"
        )
    frame.known = {id(leaf): leaf for leaf in leaves}
    frame.known |= {id(parameter): parameter for _, parameter in registered}
    frame.complete = True
    if frame.saved and not recorder.dropped:
        region.finish(outputs)
    return outputs

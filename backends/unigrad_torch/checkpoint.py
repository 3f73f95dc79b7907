"""Recompute by torch's hooks on saved tensors; see :mod:`unigrad.saved`. Second order works, since the graph is the real one."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter

from unigrad import tree
from unigrad.errors import StaleGraphError, UnsupportedError
from unigrad.protocols import Region
from unigrad.recompute import in_recompute
from unigrad.saved import Forward, Frame, Kept, Recompute, Stop, receiving, unpack
from unigrad_torch.captures import edges, reached, refuse, registrations, sequence_number
from unigrad_torch.compiled import refuse_compiled
from unigrad_torch.fingerprint import fingerprint
from unigrad_torch.marks import unnoticed
from unigrad_torch.occupants import computed, put_back
from unigrad_torch.precision import Precision
from unigrad_torch.transforms import refuse_mapped, told_of_transforms

__all__ = ["fingerprint", "run"]


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


def _hooks(receiver: list[Forward | Recompute]) -> saved_tensors_hooks:
    def pack(tensor: Tensor) -> Kept:
        return receiver[0].save(tensor, (tensor.shape, tensor.dtype, tensor.device))

    return saved_tensors_hooks(pack, unpack)


def _version(leaf: Any) -> int | None:
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else None


class _Frame(Frame):
    def __init__(self, region: Region) -> None:
        super().__init__(region, _version)
        self.precision = Precision()
        self.known: dict[int, Tensor] = {}
        self.values: dict[int, tuple[int, dict[int, Kept]]] = {}

    def take(self, index: int) -> Kept:
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

    def recompute(self, last: int | None) -> dict[int, Kept]:
        """Run the function again; ``last`` ends it early, where a gradient is asked for while the forward still runs."""
        self.require_unchanged()
        recorder = Recompute(self, last, _Saved)
        with ExitStack() as contexts:
            contexts.enter_context(torch.inference_mode(False))  # a backward works under it too
            contexts.enter_context(self.region.replay())
            contexts.enter_context(put_back(self.region.places))
            contexts.enter_context(self.precision.restored())
            contexts.enter_context(unnoticed())
            contexts.enter_context(torch.enable_grad())
            registered = contexts.enter_context(registrations())
            contexts.enter_context(receiving(recorder, _hooks))
            try:
                outputs = self.again()
            except Stop:
                return recorder.found
        self.check(outputs, recorder, self.created(outputs, registered))
        return recorder.found

    def created(self, outputs: Any, registered: list[tuple[str, Parameter]]) -> list[str]:
        """Name the parameters of a recompute that the forward did not know."""
        known = self.known.keys() | {id(parameter) for parameter in self.region.parameters}
        made = {id(parameter): name for name, parameter in registered if isinstance(parameter, Parameter)}
        leaves, _ = reached(_tensors(outputs), self.border(), None)
        made |= {id(leaf): "" for leaf in leaves if isinstance(leaf, Parameter) and id(leaf) not in made}
        return [name or "one of no module" for key, name in made.items() if key not in known]

    def border(self) -> set[tuple[Any, int]]:
        """Return the edges at which the arguments, and parameters that are no leaves, enter the graph."""
        return edges([tensor for _, tensor, _ in self.arguments]) | computed(self.region.places)


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
    refuse_mapped("a checkpoint")
    if not torch._C._autograd._saved_tensors_hooks_is_enabled():
        raise UnsupportedError(
            "a checkpoint does not work inside torch.func transforms, which allow no saved-tensor hooks"
        )
    frame = _Frame(region)
    border, since = frame.border(), sequence_number()
    recorder = Forward(frame)
    with registrations() as registered, receiving(recorder, _hooks), told_of_transforms():
        outputs = region.function(*region.args, **region.kwargs)
    leaves, captured = reached(_tensors(outputs), border, None if in_recompute() else since)
    if captured is not None:
        refuse(region.function, captured)
    frame.known = {id(leaf): leaf for leaf in leaves}
    frame.known |= {id(parameter): parameter for _, parameter in registered}
    frame.end(recorder, outputs)
    return outputs

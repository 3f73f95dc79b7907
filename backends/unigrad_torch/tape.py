"""Record, which parameters a loss reaches, vector-Jacobian product, release: the pure engine.

The graph below the losses is walked once per backward. Gradients come from ``torch.autograd.grad``, which touches no
``.grad`` and changes nothing when it fails. torch itself notices a second backward only at operations that had
saved something, so released nodes carry a mark of our own in their metadata, which lives as long as the node.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward, get_gradient_edge
from torch.nn import Parameter

from unigrad.errors import ArgumentError, GraphReleasedError, NoGraphError, StaleGraphError, UnsupportedError
from unigrad_torch import compiled_graph
from unigrad_torch.compiled import refuse_compiled
from unigrad_torch.compiled_graph import is_compiled
from unigrad_torch.engine import engine as engine
from unigrad_torch.faults import translated
from unigrad_torch.marks import MARKED
from unigrad_torch.reducers import wrappers_of
from unigrad_torch.transforms import refuse_transformed
from unigrad_torch.usage import Region, pause, resume

_KEY = "unigrad.released"
_REENTRANT = "CheckpointFunctionBackward"

_mark = object()
"""Stands in the metadata of each released node."""
_harmless: set[type] = set()
_Leaf = torch._C._functions.AccumulateGrad
_REQUIRES, _HOOKS = attrgetter("requires_grad"), attrgetter("_backward_hooks")
_LATER_HOOKS = attrgetter("_post_accumulate_grad_hooks")
_PLAIN_KINDS = {Tensor, Parameter, *MARKED}


def living_marks() -> int:
    """Return how many nodes are marked as released; while none is, no walk needs to look for marks."""
    return sys.getrefcount(_mark) - _UNUSED


_UNUSED = sys.getrefcount(_mark)


class _Graph:
    """The recorded graph below some losses; ``custom`` says whether operations of the user's own are in it."""

    __slots__ = ("custom", "leaves", "losses", "nodes", "released")

    def __init__(
        self, losses: Sequence[Tensor], leaves: list[Tensor], nodes: list[Any], released: str | None, custom: bool
    ) -> None:
        self.custom = custom
        self.losses = losses
        self.leaves = leaves
        self.nodes = nodes
        self.released = released


def open_region() -> Region:
    """Start recording for this thread; the observer is told of leaves used in recorded operations."""
    refuse_compiled("recording")
    if torch.is_inference_mode_enabled():
        raise UnsupportedError("torch records nothing under inference_mode; open the collector outside of it")
    return Region()


def close_region(region: Region) -> None:
    """Undo ``open_region``."""
    region.close()


def is_recording() -> bool:
    """Whether operations on trainable tensors are recorded in this thread now."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def no_record() -> AbstractContextManager[Any]:
    """Run without recording in this thread."""
    return torch.no_grad()


def trace(losses: Sequence[Any]) -> _Graph:
    """Walk the graph below the losses; changes nothing."""
    refuse_transformed("backward")
    nodes: list[Any] = []
    leaves: list[Tensor] = []
    mode = pause()
    try:
        for loss in losses:
            node = loss.grad_fn
            if node is not None:
                nodes.append(node)
            elif not loss.requires_grad:
                raise NoGraphError(
                    "nothing was recorded that leads to this loss: it is a constant, or was detached, or all it depends "
                    "on is frozen, or it was computed outside of "
                    "any recording (under no_grad or inference_mode)"
                )
            elif all(loss is not leaf for leaf in leaves):
                leaves.append(loss)
    finally:
        resume(mode)
    own = tuple(leaves)  # losses that are leaves themselves
    seen = set(nodes)
    for node in nodes:  # which grows meanwhile
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                if type(below) is _Leaf:
                    leaves.append(below.variable)
                else:
                    nodes.append(below)
    if own:
        leaves = [*own, *(leaf for leaf in leaves[len(own) :] if all(leaf is not loss for loss in own))]
    # Asking the set costs less than a loop: the types of a graph are nearly always known.
    custom = not _harmless.issuperset(map(type, nodes)) and _refuse_reentrant(nodes)
    if custom and any(map(is_compiled, set(map(type, nodes)))):
        leaves = [*own, *compiled_graph.follow([(loss.grad_fn, loss.output_nr) for loss in losses if loss.grad_fn])]
    return _Graph(losses, leaves, nodes, _released(nodes) if living_marks() else None, custom)


def _refuse_reentrant(nodes: list[Any]) -> bool:
    """Raise for reentrant checkpoints; return whether operations of the user's own are in the graph."""
    custom = False
    for kind in set(map(type, nodes)) - _harmless:
        if kind.__name__ == _REENTRANT:
            raise UnsupportedError(
                "the graph holds a reentrant torch.utils.checkpoint, whose inner parameters cannot be seen and get no "
                "gradient here; pass use_reentrant=False to it, or use unigrad.checkpoint"
            )
        if kind.__module__ == "builtins":  # the types of torch's own nodes are static; a user's may be made per call
            _harmless.add(kind)
        else:
            custom = True
    return custom


def _released(nodes: list[Any]) -> str | None:
    return next((node.name() for node in nodes if _KEY in node.metadata), None)


def vjp(
    graph: _Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    """Return the vector-Jacobian product for each target, None where not reached or frozen since the forward."""
    if graph.released is not None:
        raise GraphReleasedError(f"this graph was released by an earlier backward, at the operation {graph.released}")
    given: set[int] = set()
    mode = pause()
    try:
        asked = targets if all(map(_REQUIRES, targets)) else [target for target in targets if target.requires_grad]
        if not asked:
            return [None] * len(targets)
        if any(map(_LATER_HOOKS, asked)) or wrappers_of(asked):
            raise UnsupportedError(
                "a hook that runs after gradients are accumulated, or a DistributedDataParallel, was put on a parameter after the "
                "collector was entered, and would not run; enter a new collector"
            )
        if _is_plain(graph.losses, cotangents, asked):
            loss = graph.losses[0]
            found = _engine_run_backward(
                (loss,), (torch.ones_like(loss),), retain, create, tuple(asked), True, accumulate_grad=False
            )
        else:
            dense = [one if one is None or one.layout is torch.strided else one.to_dense() for one in cotangents]
            given = {one.untyped_storage()._cdata for one in dense if one is not None}
            found = torch.autograd.grad(
                graph.losses, asked, dense, retain_graph=retain, create_graph=create, allow_unused=True
            )
    except RuntimeError as error:
        told = translated(error)
        if told is None:
            raise
        raise told from error
    finally:
        resume(mode)
    plain = not given and not graph.custom and not any(map(_HOOKS, asked))
    for gradient in found:
        if gradient is None:
            refuse_converted(graph, asked, found)
            plain = False
            break
        plain = plain and gradient.layout is torch.strided
    if plain:
        results = list(found)
    else:
        foreign = graph.custom or any(map(_HOOKS, asked))
        results = [apart(gradient, given, foreign) for gradient in found]
    if asked is targets:
        return results
    supply = iter(results)
    return [next(supply) if target.requires_grad else None for target in targets]


def _is_plain(losses: Sequence[Any], cotangents: Sequence[Any | None], asked: Sequence[Any]) -> bool:
    """Whether the engine may be called at once.

    The checks of ``autograd.grad`` and ``autograd.backward``, and their look for overridden functions, cost a small model a tenth of a
    step.
    """
    loss = losses[0]
    return (
        len(cotangents) == 1
        and cotangents[0] is None
        and type(loss) is Tensor
        and loss.is_floating_point()
        and _PLAIN_KINDS.issuperset(map(type, asked))
        and not torch._C._len_torch_function_stack()
    )


def run_backward(losses: Sequence[Any], cotangents: Sequence[Any | None], inputs: Sequence[Any], retain: bool) -> None:
    """Have torch accumulate into ``.grad`` of the inputs."""
    if _is_plain(losses, cotangents, inputs):
        ones = torch.ones_like(losses[0])
        _engine_run_backward((losses[0],), (ones,), retain, False, tuple(inputs), True, accumulate_grad=True)
    else:
        torch.autograd.backward(losses, cotangents, retain_graph=retain, inputs=inputs)


def refuse_converted(graph: _Graph, asked: Sequence[Tensor], found: Sequence[Tensor | None]) -> None:
    """Raise ``StaleGraphError`` for a leaf whose dtype or place was changed since: torch then finds nothing, in silence."""
    missing = [target for target, gradient in zip(asked, found, strict=True) if gradient is None and target.is_leaf]
    missing = [target for target in missing if any(target is leaf for leaf in graph.leaves)]
    if not missing:
        return
    recorded = {below for node in graph.nodes for below, _ in node.next_functions if below is not None}
    for target in missing:
        if get_gradient_edge(target).node not in recorded:
            raise StaleGraphError(
                f"a parameter of shape {tuple(target.shape)}, now {str(target.dtype)[6:]} on {target.device}, was converted to "
                "another dtype or device after the forward; run the forward again after the conversion"
            )


def apart(gradient: Any | None, given: set[int], foreign: bool) -> Any | None:
    """Return the gradient dense, and copied if its memory may be the user's: a cotangent, or what own operations or hooks return."""
    if gradient is None:
        return None
    if gradient.layout is not torch.strided:
        return gradient.to_dense()  # its indices are the user's
    return gradient.clone() if foreign or gradient.untyped_storage()._cdata in given else gradient


def release(graph: _Graph) -> None:
    """Mark every node of the graph, leaves excepted; torch freed what the engine ran, the rest dies with the loss."""
    for node in graph.nodes:
        node.metadata[_KEY] = _mark


def watch(tensor: Any) -> Any:
    """Return a new tensor of the same values that needs a gradient, still connected to the tensor's own graph."""
    if not tensor.is_floating_point() and not tensor.is_complex():
        raise TypeError(f"only floating-point tensors have gradients, not {tensor.dtype}")
    if tensor.is_inference():
        tensor = tensor.clone()  # torch lets no inference tensor take a gradient
    if not tensor.requires_grad:
        return tensor.detach().requires_grad_()
    with torch.enable_grad():  # a view made without recording would silently never get a gradient
        return tensor.view_as(tensor)


def native() -> Any:
    """Return the engine for a collector that the pure one cannot serve."""
    from unigrad_torch.native import Native  # which imports this module

    return Native()


def native_gradient(parameter: Any) -> Any | None:
    """Return ``.grad``."""
    return parameter.grad


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    """Put the gradient into ``.grad``."""
    try:
        parameter.grad = gradient
    except RuntimeError as error:
        raise ArgumentError(
            f"a gradient of {str(gradient.dtype)[6:]} on {gradient.device} does not fit its parameter of shape {tuple(parameter.shape)}, "
            f"{str(parameter.dtype)[6:]} on {parameter.device}; was the model converted since the backward?"
        ) from error

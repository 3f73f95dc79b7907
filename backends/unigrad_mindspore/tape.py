"""Record, which parameters a loss reaches, vector-Jacobian product, release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from mindspore import Tensor, ops

from unigrad.errors import GraphReleasedError, NoGraphError, StaleGraphError, UnsupportedError
from unigrad.protocols import Structure
from unigrad_mindspore.arrays import from_numpy, requires_gradient, view
from unigrad_mindspore.dispatch import paused
from unigrad_mindspore.kernels import FREED, explained, settle
from unigrad_mindspore.leaves import remember
from unigrad_mindspore.marks import marked
from unigrad_mindspore.marks import release as release_nodes
from unigrad_mindspore.passes import backward_pass, may_recompute
from unigrad_mindspore.pynative import TWICE, node_id, recorded, recording, run_backward, unrecorded
from unigrad_mindspore.usage import Region, leaf_of, require_recording
from unigrad_mindspore.versions import written_at

_CHANGED = "has been modified by an inplace operation"
_COMPILED = "bprop_builder"
_SPENT = "args excced the number of edges"


class _Graph:
    """The recorded graph below some losses."""

    __slots__ = ("_freed", "_leaves", "_uses", "losses", "nodes")

    def __init__(self, losses: Sequence[Any]) -> None:
        self.losses = losses
        self.nodes: list[tuple[int, Any, int]] = []
        self._leaves: dict[int, Any] = {}
        self._uses: list[tuple[Any, int]] = []
        self._freed = False
        try:
            self._walk()
        except RuntimeError as error:
            if FREED not in str(error):
                raise
            self._freed = True

    def _walk(self) -> None:
        leaves, seen = self._leaves, set()
        waiting = [loss._grad_node for loss in self.losses]
        while waiting:
            node = waiting.pop()
            number = node._unique_id()
            if number in seen:
                continue
            seen.add(number)
            if node.is_leaf():
                leaves[number] = node
                continue
            below = node.next_functions
            self.nodes.append((number, node, len(below)))
            for one, _ in below:
                if one is not None:
                    waiting.append(one)
                    if one.is_leaf():
                        self._uses.append((one, node._sequence_nr()))

    @property
    def leaves(self) -> Sequence[Any]:
        """Leaf tensors, each once; what stands for one of which nobody has told."""
        return [leaf_of(node) for node in self._leaves.values()]

    @property
    def released(self) -> str | None:
        """Name of a released node."""
        node = marked(self.nodes)
        if node is not None:
            return str(node.name())
        return "a function of the user's own" if self._freed else None

    def changed(self) -> Any | None:
        """Return a leaf that unigrad has written since an operation of this graph used it."""
        uses = ((leaf_of(node), moment) for node, moment in self._uses)
        return next((leaf for leaf, moment in uses if isinstance(leaf, Tensor) and written_at(leaf) > moment), None)


def engine(model: Any, structure: Structure) -> str:
    """Return ``"pure"``; Cells with a gradient or a recompute of their own are refused."""
    if model is None:
        return "pure"
    for cell in structure.token.cells:
        if cell.has_bprop:
            raise UnsupportedError(
                f"{type(cell).__name__} has a bprop of its own, which MindSpore runs inside its own gradient functions only; write it "
                "as a mindspore function of ops, or as a _Function"
            )
        if cell._recompute_cell is not None:
            raise UnsupportedError(
                f"{type(cell).__name__} was given to Cell.recompute(), which fails outside of MindSpore's own gradient "
                "functions; use unigrad.checkpoint"
            )
    return "pure"


def open_region() -> Region:
    """Start recording for this thread."""
    return Region()


def close_region(region: Region) -> None:
    """Undo ``open_region``."""
    region.close()


def is_recording() -> bool:
    """Whether operations on trainable tensors are recorded in this thread now."""
    return recording()


def no_record() -> AbstractContextManager[Any]:
    """Run without recording in this thread."""
    return unrecorded()


def trace(losses: Sequence[Any]) -> _Graph:
    """Walk the graph below the losses; changes nothing."""
    require_recording()
    settle()
    for loss in losses:
        if not requires_gradient(loss) or loss._grad_node is None:
            raise NoGraphError(
                "nothing was recorded that leads to this loss: it is a constant, was detached (stop_gradient), depends on "
                "frozen parameters only, or was computed under _no_grad, or outside of the collector: MindSpore records inside "
                "of one only, so that a forward before it leaves no graph"
            )
    return _Graph(losses)


def vjp(
    graph: _Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    """Return the vector-Jacobian product for each target, None where not reached or frozen since the forward."""
    if graph.released is not None:
        raise GraphReleasedError(f"this graph was released by an earlier backward, at the operation {graph.released}")
    if create:
        _refuse_compiled(graph)
    changed = graph.changed()
    if changed is not None:
        raise StaleGraphError(
            f"a parameter of shape {tuple(changed.shape)} was changed (by a step or a load) after a forward that this loss depends on; "
            "run the forward again after the change"
        )
    asked = [target for target in targets if target._requires_grad and node_id(target) is not None]
    if not asked:
        return [None] * len(targets)
    with paused(), backward_pass():
        found = _run(graph, cotangents, asked, retain, create)
    supply = iter(found)
    kept = {id(target) for target in asked}
    return [next(supply) if id(target) in kept else None for target in targets]


def _run(
    graph: _Graph, cotangents: Sequence[Any | None], asked: Sequence[Any], retain: bool, create: bool
) -> list[Any | None]:
    losses = [_with_node(loss) for loss in graph.losses]
    seeds = [
        _ones(loss) if cotangent is None else cotangent for loss, cotangent in zip(losses, cotangents, strict=True)
    ]
    ends, passed = _ends(asked)
    heard: dict[int, Any] = {}
    # The engine releases as it goes, also in a backward that then fails in a recompute; the core releases afterwards.
    keep = retain or may_recompute()
    hooks = [target.register_hook(_listener(heard, id(target))) for target in passed]
    try:
        with explained():
            found = dict(zip(map(id, ends), run_backward(losses, seeds, ends, retain=keep, create=create), strict=True))
    except RuntimeError as error:
        text = str(error)
        if TWICE in text:
            raise GraphReleasedError(
                "a part of this graph was released by an earlier backward; pass retain_graph=True to that one"
            ) from error
        if _SPENT in text:
            raise UnsupportedError(
                "the graph holds a function compiled by mindspore.jit, which can be run backward once where one of its inputs needs no "
                "gradient: MindSpore has lost its place since. Run the forward again for each backward, or call it without jit"
            ) from error
        if _CHANGED in text:
            raise StaleGraphError(
                f"a value that the graph needs was changed in place after the forward; run the forward again after the change: {text}"
            ) from error
        raise
    finally:
        for hook in hooks:
            hook.remove()
    gradients = [found.get(id(target), heard.get(id(target))) for target in asked]
    if create:
        return gradients
    foreign = {tensor.data_ptr() for tensor in (*seeds, *asked)}
    return [
        from_numpy(view(gradient)) if gradient is not None and gradient.data_ptr() in foreign else gradient
        for gradient in gradients
    ]


def _ends(asked: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the targets at which the engine may end, and those that it must pass on its way to another target.

    It goes no further than a target that it was given, also where there is another below.
    """
    inner = [target for target in asked if not target._is_leaf]
    if not inner:
        return list(asked), []
    wanted = {node_id(target) for target in asked}
    passed = [target for target in inner if _leads_to(target._grad_node, wanted)]
    return [target for target in asked if all(target is not other for other in passed)], passed


def _leads_to(node: Any, wanted: set[int | None]) -> bool:
    waiting = [below for below, _ in node.next_functions if below is not None]
    seen: set[int] = set()
    while waiting:
        below = waiting.pop()
        number = below._unique_id()
        if number in wanted:
            return True
        if number not in seen:
            seen.add(number)
            waiting += [further for further, _ in below.next_functions if further is not None]
    return False


def _listener(heard: dict[int, Any], key: int) -> Callable[[Any], None]:
    def hear(gradient: Any) -> None:
        heard[key] = gradient

    return hear


def _with_node(loss: Any) -> Any:
    """Return the loss, below an operation if it is a leaf: the engine begins at operations only."""
    if not loss._grad_node.is_leaf():
        return loss
    with recorded():
        return ops.reshape(loss, loss.shape)


def _ones(loss: Any) -> Any:
    return Tensor(np.ones(loss.shape), dtype=loss.dtype)


def _refuse_compiled(graph: _Graph) -> None:
    if any(_COMPILED in node.name() for _, node, _ in graph.nodes):
        raise UnsupportedError(
            "the graph holds a function compiled by mindspore.jit, whose second derivative the engine gets wrong; call it without "
            "jit where create_graph=True is needed"
        )


def release(graph: _Graph) -> None:
    """Mark every node of the graph, leaves excepted, and free what the nodes saved."""
    release_nodes(graph.nodes)


@explained()
def watch(tensor: Any) -> Any:
    """Return a new tensor of the same values that needs a gradient, still connected to the tensor's own graph."""
    remember(tensor)
    if tensor._requires_grad:
        with recorded():
            return ops.reshape(tensor, tensor.shape)
    twin = ops.stop_gradient(tensor)
    twin.requires_grad_()
    remember(twin)
    return twin


def native_gradient(parameter: Any) -> Any | None:
    """Return the slot that MindSpore's engine accumulates into."""
    return parameter._grad


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    """Put the gradient into the slot."""
    parameter._grad = gradient

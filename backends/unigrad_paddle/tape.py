"""Record, which parameters a loss reaches, vector-Jacobian product, release.

Paddle's own engine writes into ``.grad`` of every leaf below a loss. It serves where all of these are known, since what
stood there can then be put back; elsewhere, and where only some leaves are asked for, ``paddle.grad`` does, which writes nothing but
frees nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import paddle

from unigrad.errors import GraphReleasedError, NoGraphError, UnsupportedError
from unigrad_paddle.arrays import half, is_floating, is_half
from unigrad_paddle.engine import engine, parallel
from unigrad_paddle.faults import explained
from unigrad_paddle.framework import is_leaf_node, node_of, shares_memory
from unigrad_paddle.leaves import know, leaf_of
from unigrad_paddle.marks import GATES, RELEASED
from unigrad_paddle.recompute import in_recompute, in_region
from unigrad_paddle.usage import Region, current

__all__ = [
    "close_region",
    "engine",
    "in_recompute",
    "is_recording",
    "native_gradient",
    "no_record",
    "open_region",
    "release",
    "set_native_gradient",
    "trace",
    "vjp",
    "watch",
]

_REENTRANT = "GradNodePyLayer_RecomputeFunction"
_ONCE = ("GradNodePyLayer", "Dy2StGradNode")


class _Graph:
    """The recorded graph below some losses.

    Parameters
    ----------
    losses
        The losses.
    nodes
        All nodes but those of leaves.
    leaves
        The leaf tensors; of one that is not known, its node.
    known
        Whether all leaves are known.
    once
        Nodes that Paddle can run only once.
    released
        Name of a released node.
    """

    __slots__ = ("known", "leaves", "losses", "nodes", "once", "released")

    def __init__(
        self, losses: list[Any], nodes: list[Any], leaves: list[Any], known: bool, once: list[Any], released: str | None
    ) -> None:
        self.losses = losses
        self.nodes = nodes
        self.leaves = leaves
        self.known = known
        self.once = once
        self.released = released


def open_region() -> Region:
    """Start recording for this thread."""
    refuse_compiled("a collector")
    return Region()


def refuse_compiled(what: str) -> None:
    if not paddle.in_dynamic_mode():
        raise UnsupportedError(
            f"{what} does not work inside a compiled step (paddle.jit.to_static, or static mode); open it around the compiled call"
        )


def close_region(region: Region) -> None:
    """Undo ``open_region``."""
    region.close()


def is_recording() -> bool:
    """Whether operations on trainable tensors are recorded in this thread now."""
    return bool(paddle.is_grad_enabled() and paddle.in_dynamic_mode())


def no_record() -> AbstractContextManager[Any]:
    """Run without recording in this thread."""
    context: AbstractContextManager[Any] = paddle.no_grad()
    return context


def trace(losses: Sequence[Any]) -> _Graph:
    """Walk the graph below the losses; changes nothing."""
    found = []
    for loss in losses:
        node = None if loss.stop_gradient or not (is_floating(loss) or loss.is_complex()) else node_of(loss)
        if node is None:
            raise NoGraphError
        found.append(node)
    nodes, ends = walk(found)
    region = current()
    leaves = []
    known = True
    for node in ends:
        leaf = leaf_of(node)
        if leaf is None:
            known = False
            leaf = node if region is None else region.keep(node)
        elif is_half(leaf):
            raise UnsupportedError(half(leaf))
        leaves.append(leaf)
    once = [node for node in nodes if node.name().startswith(_ONCE)]
    if any(node.name() == _REENTRANT for node in once):
        raise UnsupportedError(
            "the graph holds a reentrant paddle.distributed.fleet.utils.recompute, whose inner parameters cannot be seen and get no "
            "gradient here; use unigrad.checkpoint, or pass use_reentrant=False to it"
        )
    released = RELEASED.first(nodes)
    return _Graph(list(losses), nodes, leaves, known, once, None if released is None else str(released.name()))


def walk(roots: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return all nodes below and including some, and apart from them those of leaves, each once."""
    nodes = list(dict.fromkeys(roots))
    seen = set(nodes)
    inner = []
    ends = []
    for node in nodes:  # which grows meanwhile
        leaf = True
        for below in node.next_functions:
            if below is not None:
                leaf = False
                if below not in seen:
                    seen.add(below)
                    nodes.append(below)
        if leaf and is_leaf_node(node):
            ends.append(node)
        else:
            inner.append(node)
    return inner, ends


def vjp(
    graph: _Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    """Return the vector-Jacobian product for each target, None where not reached or frozen since the forward."""
    if graph.released is not None:
        raise GraphReleasedError(f"this graph was released by an earlier backward, at the operation {graph.released}")
    synchronized = _check_parallel(graph, retain, create)
    if graph.once:
        _check_once(graph, retain, create)
    losses, vectors = _merged(graph.losses, cotangents)
    asked = [target for target in targets if not target.stop_gradient]
    if not asked:
        return [None] * len(targets)
    leaves = {id(leaf) for leaf in graph.leaves}
    own = synchronized or bool(graph.once) or (graph.known and not create and any(id(one) in leaves for one in asked))
    if GATES.first(graph.nodes) is not None:
        if create:
            raise UnsupportedError(
                "backend 'paddle' does not support second order through a checkpoint (create_graph=True): its recompute is no part "
                "of the graph. Set enabled = False on what is checkpointed"
            )
        # What the recompute raises stops the engine half-way, and the same backward is to work again.
        retain = retain or not graph.once
    try:
        with explained():
            run = _native if own else _partial
            found = run(graph, losses, vectors, asked, retain, create)
    finally:
        RELEASED.add(graph.once)
    given = [vector for vector in cotangents if vector is not None]
    results = {
        id(target): value.clone() if value is not None and any(shares_memory(value, one) for one in given) else value
        for target, value in zip(asked, found, strict=True)
    }
    return [results.get(id(target)) for target in targets]


def _check_once(graph: _Graph, retain: bool, create: bool) -> None:
    name = graph.once[0].name()
    if retain or create:
        raise UnsupportedError(
            f"the graph holds {name}, which Paddle can run backward only once: a second time kills the process. So it cannot be "
            "retained; give all losses to one backward: backward([first, second])"
        )
    if not graph.known:
        raise UnsupportedError(
            f"the graph holds {name}, whose backward wants gradients of all its inputs, and a leaf tensor that no block holds and "
            "that is not watched; wrap it too (a mapping of names to tensors), watch it, or detach it"
        )


def _check_parallel(graph: _Graph, retain: bool, create: bool) -> bool:
    """Whether other processes take part; raise for what they would not learn of."""
    wrapper = next((one for one in map(parallel, graph.leaves) if one is not None), None)
    if wrapper is None:
        return False
    if retain or create:
        raise UnsupportedError(
            "the model is in DataParallel, which exchanges gradients in the first backward of a forward only: a retained graph "
            "would give each process its own. Give all losses to one backward, or run the forward again"
        )
    if not wrapper.grad_need_sync:
        raise UnsupportedError(
            "no_sync() keeps gradients in each process, and the mean over processes of a later backward would leave them out; "
            "collect without it: each backward gives the mean over processes"
        )
    if not graph.known:
        raise UnsupportedError(
            "the model is in DataParallel, whose engine writes a gradient into every leaf; one of them belongs to no block and is "
            "not watched. Wrap it too (a mapping of names to tensors), watch it, or detach it"
        )
    return True


def _merged(losses: Sequence[Any], cotangents: Sequence[Any | None]) -> tuple[list[Any], list[Any | None]]:
    """Return each loss once, with the sum of its cotangents: Paddle refuses one that is given twice."""
    if len({id(loss) for loss in losses}) == len(losses):
        return list(losses), list(cotangents)
    vectors: dict[int, Any] = {}
    for loss, vector in zip(losses, cotangents, strict=True):
        one = paddle.ones_like(loss.detach()) if vector is None else vector
        vectors[id(loss)] = one if id(loss) not in vectors else vectors[id(loss)] + one
    unique = list({id(loss): loss for loss in losses}.values())
    return unique, [vectors[id(loss)] for loss in unique]


class _Depth:
    partial = 0


def _partial(
    graph: _Graph, losses: list[Any], vectors: list[Any | None], asked: list[Any], retain: bool, create: bool
) -> list[Any | None]:
    """Ask ``paddle.grad``, which touches no ``.grad`` and computes only what leads to a target."""
    if _Depth.partial:
        raise UnsupportedError(
            "a backward inside another one that collects inputs only, or leaves of no block: Paddle's engine for these kills the "
            "process when it is nested. Open the inner collector on a block that holds all leaves of its loss"
        )
    unique = list({id(target): target for target in asked}.values())
    _Depth.partial += 1
    try:
        found = paddle.grad(
            losses, unique, vectors, retain_graph=True if retain else None, create_graph=create, allow_unused=True
        )
    finally:
        _Depth.partial -= 1
    by_id = {id(target): value for target, value in zip(unique, found, strict=True)}
    return [by_id[id(target)] for target in asked]


def _native(
    graph: _Graph, losses: list[Any], vectors: list[Any | None], asked: list[Any], retain: bool, create: bool
) -> list[Any | None]:
    """Run Paddle's own engine, and put back what stood in ``.grad``."""
    leaves = {id(leaf): leaf for leaf in graph.leaves}
    caught: dict[int, Any] = {}
    hooks = [target.register_hook(_catcher(caught, id(target))) for target in asked if id(target) not in leaves]
    before = [(leaf, take(leaf)) for leaf in graph.leaves]
    try:
        paddle.autograd.backward(losses, vectors, retain_graph=retain)
        caught.update((key, take(leaf)) for key, leaf in leaves.items())
    finally:
        for hook in hooks:
            hook.remove()
        for leaf, gradient in before:
            leaf.clear_gradient(False)
            if gradient is not None:
                leaf.grad = gradient
    return [caught.get(id(target)) for target in asked]


def _catcher(caught: dict[int, Any], key: int) -> Any:
    def catch(gradient: Any) -> None:
        caught[key] = gradient.detach().clone()

    return catch


def take(leaf: Any) -> Any | None:
    """Take the gradient out of a leaf without a copy; what is handed out by ``.grad`` itself would be emptied with it."""
    gradient = leaf.grad
    if gradient is None:
        return None
    if gradient.is_selected_rows():
        raise UnsupportedError("a sparse gradient (Embedding with sparse=True) is neither copied nor summed by Paddle")
    kept = gradient.detach().view(list(gradient.shape))
    leaf.clear_gradient(False)  # by position: the keyword is ignored
    return kept


def release(graph: _Graph) -> None:
    """Mark every node of the graph, leaves excepted; Paddle freed what its own engine ran, the rest dies with the loss."""
    RELEASED.add(graph.nodes)


def watch(tensor: Any) -> Any:
    """Return a new tensor of the same values that needs a gradient, still connected to the tensor's own graph."""
    if not is_floating(tensor):
        raise TypeError(f"only floating-point tensors have gradients, not {tensor.dtype}")
    if in_region() and not in_recompute():
        raise UnsupportedError(
            "watch inside a checkpointed function: what the function computes is in no graph with this backend. Watch an argument or an "
            "output outside of it, or set enabled = False on what is checkpointed"
        )
    if tensor.stop_gradient:
        twin = tensor.detach()
        twin.stop_gradient = False
        know([twin])
        return twin
    if tensor.is_leaf:
        know([tensor])
    with paddle.enable_grad():
        return tensor.view(list(tensor.shape))


def native_gradient(parameter: Any) -> Any | None:
    """Return ``.grad``."""
    return parameter.grad


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    """Put a copy of the gradient into ``.grad``."""
    if gradient is None:
        parameter.clear_gradient(False)
    else:
        parameter.grad = gradient

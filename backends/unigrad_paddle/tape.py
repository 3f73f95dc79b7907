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

from unigrad.errors import ArgumentError, GraphReleasedError, UnsupportedError
from unigrad.recompute import in_recompute
from unigrad_paddle.arrays import half, is_floating, is_half
from unigrad_paddle.compiled import refuse_compiled
from unigrad_paddle.engine import engine as engine
from unigrad_paddle.engine import parallel
from unigrad_paddle.engines import releasing
from unigrad_paddle.faults import explained
from unigrad_paddle.framework import shares_memory, view
from unigrad_paddle.graph import Graph
from unigrad_paddle.graph import trace as trace
from unigrad_paddle.leaves import know, leaf_of
from unigrad_paddle.marks import GATES, RELEASED, forget_failed
from unigrad_paddle.recompute import in_region
from unigrad_paddle.stand_ins import original
from unigrad_paddle.usage import Region


def open_region() -> Region:
    """Start recording for this thread."""
    refuse_compiled("a collector")
    return Region()


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


def vjp(
    graph: Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    """Return the vector-Jacobian product for each target, None where not reached or frozen since the forward."""
    if graph.released is not None:
        raise GraphReleasedError(f"this graph was released by an earlier backward, at the operation {graph.released}")
    actual = [leaf_of(node) for node in graph.ends]
    leaves = [leaf for leaf in actual if leaf is not None]
    known = len(leaves) == len(actual)
    for leaf in leaves:
        if is_half(leaf):
            raise UnsupportedError(half(leaf))
    synchronized = _check_parallel(leaves, known, retain, create)
    if graph.once:
        _check_once(graph, known, retain, create)
    last = not (retain or create)
    if GATES.first(graph.nodes) is not None:
        if create:
            raise UnsupportedError(
                "backend 'paddle' does not support second order through a checkpoint (create_graph=True): its recompute is no part "
                "of the graph. Set enabled = False on what is checkpointed"
            )
        # What a recompute raises stops the engine half-way, and the same backward is to work again. Regions release themselves.
        retain = retain or not graph.once
    stands_for = {id(original(leaf)): leaf for leaf in leaves}
    wanted = [stands_for.get(id(target), target) for target in targets]
    asked = list({id(target): target for target in wanted if not target.stop_gradient}.values())
    if not asked:
        return [None] * len(targets)
    losses, vectors = _merged(graph.losses, cotangents)
    parameters = {id(leaf) for leaf in leaves if not hasattr(leaf, "_unigrad_watched")}
    own = synchronized or bool(graph.once) or (known and not create and any(id(one) in parameters for one in asked))
    try:
        with explained(), releasing(last):
            found = (
                _native(losses, vectors, asked, leaves, retain)
                if own
                else _partial(losses, vectors, asked, retain, create)
            )
    finally:
        RELEASED.add(graph.once)
    for target, value in zip(asked, found, strict=True):
        if value is not None and value.shape != target.shape:
            raise ArgumentError(
                f"a gradient has the shape {tuple(value.shape)}, its tensor {tuple(target.shape)}: a hook, or the backward of a PyLayer, "
                "returns one of another shape"
            )
    given = [vector for vector in cotangents if vector is not None]
    results = {
        id(target): value.clone() if value is not None and any(shares_memory(value, one) for one in given) else value
        for target, value in zip(asked, found, strict=True)
    }
    return [results.get(id(target)) for target in wanted]


def _check_once(graph: Graph, known: bool, retain: bool, create: bool) -> None:
    name = graph.once[0].name()
    if retain or create:
        raise UnsupportedError(
            f"the graph holds {name}, which Paddle can run backward only once: a second time kills the process. So it cannot be "
            "retained; give all losses to one backward: backward([first, second])"
        )
    if not known:
        raise UnsupportedError(
            f"the graph holds {name}, whose backward wants gradients of all its inputs, and a leaf tensor that no block holds and "
            "that is not watched; wrap it too (a mapping of names to tensors), watch it, or detach it"
        )


def _check_parallel(leaves: Sequence[Any], known: bool, retain: bool, create: bool) -> bool:
    """Whether other processes take part; raise for what they would not learn of."""
    wrapper = next((one for one in map(parallel, leaves) if one is not None), None)
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
    if not known:
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


def _partial(
    losses: list[Any], vectors: list[Any | None], asked: list[Any], retain: bool, create: bool
) -> list[Any | None]:
    """Ask ``paddle.grad``, which touches no ``.grad`` and computes only what leads to a target."""
    try:
        found: list[Any | None] = paddle.grad(
            losses, asked, vectors, retain_graph=True if retain else None, create_graph=create, allow_unused=True
        )
    except BaseException:
        forget_failed()
        raise
    return found


def _native(
    losses: list[Any], vectors: list[Any | None], asked: list[Any], leaves: list[Any], retain: bool
) -> list[Any | None]:
    """Run Paddle's own engine, and put back what stood in ``.grad`` of all leaves."""
    held = {id(leaf) for leaf in leaves}
    caught: dict[int, Any] = {}
    hooks = [target.register_hook(_catcher(caught, id(target))) for target in asked if id(target) not in held]
    before = [(leaf, take(leaf)) for leaf in leaves if leaf.grad is not None]
    done = False
    try:
        paddle.autograd.backward(losses, vectors, retain_graph=retain)
        caught.update((id(leaf), take(leaf)) for leaf in leaves)
        done = True
    finally:
        for hook in hooks:
            hook.remove()
        if not done:
            for leaf in leaves:
                leaf.clear_gradient(False)
        for leaf, gradient in before:
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
    kept = _lasting(gradient)
    leaf.clear_gradient(False)  # by position: the keyword is ignored
    return kept


def _lasting(gradient: Any) -> Any:
    """Return what shares memory with a gradient and outlives its being cleared."""
    if gradient.is_selected_rows():
        raise UnsupportedError("a sparse gradient (Embedding with sparse=True) is neither copied nor summed by Paddle")
    return view(gradient.detach())


def release(graph: Graph) -> None:
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
        twin._unigrad_watched = True
        know([twin])
        return twin
    with paddle.enable_grad():
        twin = view(tensor)
    if tensor.is_leaf:
        know([tensor])
        twin._unigrad_origin = tensor  # so that the leaf stays known as long as it is watched
    return twin


def native_gradient(parameter: Any) -> Any | None:
    """Return what stands in ``.grad``."""
    gradient = parameter.grad
    return None if gradient is None else _lasting(gradient)


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    """Put a copy of the gradient into ``.grad``, and leave alone the memory of what stood there."""
    parameter.clear_gradient(False)
    if gradient is not None:
        parameter.grad = gradient

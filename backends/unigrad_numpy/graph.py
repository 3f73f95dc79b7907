"""The recorded graph: nodes, what they keep for backward, and the backward walk over them.

Every operation run while recording makes one :class:`Node`. A node points at what it was computed from and never the
other way round, so that dropping a loss frees its graph at once, without the garbage collector. What the derivative
needs stands in ``Node.saved`` and nowhere else: it can be counted, checked against later changes, released, and
replaced by a recipe that makes it again.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unigrad.errors import GraphReleasedError, StaleGraphError

if TYPE_CHECKING:
    from unigrad_numpy.tensor import Tensor

__all__ = [
    "Graph",
    "Node",
    "Packed",
    "Part",
    "Saved",
    "State",
    "VersionCounter",
    "base_of",
    "changed_state",
    "edge_of",
    "enable_grad",
    "is_recording",
    "keep",
    "log_storage",
    "log_storages",
    "next_serial",
    "no_grad",
    "observe_uses",
    "pass_cache",
    "release",
    "saved_hooks",
    "state",
    "unpack",
    "vector_jacobian_product",
    "walk",
]

Array = np.ndarray[Any, np.dtype[Any]]
VJP = Callable[[Any, tuple[Any, ...], Any, tuple[bool, ...]], tuple[Any, ...]]
"""``vjp(context, saved arrays, cotangent, needs)`` -> one cotangent for each input, None where not needed.

It returns fresh arrays, the cotangent itself, views of it, or a :class:`Part`; never a saved array.
"""


class State(threading.local):
    """What recording depends on, one for each thread; the class attributes are what a new thread starts with."""

    recording: bool = True
    observers: tuple[Callable[[tuple[Tensor, ...]], None], ...] = ()
    hooks: tuple[tuple[Callable[[Saved], Any], Callable[[Any], Saved]], ...] = ()
    storages: tuple[list[weakref.ref[Array]], ...] = ()
    created: tuple[list[Any], ...] = ()
    calls: tuple[Callable[[Any], None], ...] = ()
    cache: dict[Any, Any] | None = None


state = State()
_serials = itertools.count()


class VersionCounter:
    """How often a storage was written in place; shared by all tensors that are views of it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Saved:
    """An array kept for backward and the version that its tensor had; no counter for an array that no tensor holds."""

    __slots__ = ("array", "counter", "version")

    def __init__(self, array: Array, counter: VersionCounter | None = None, version: int = 0) -> None:
        self.array = array
        self.counter = counter
        self.version = version


class Packed:
    """What stands in a node in place of a :class:`Saved` while saved-item hooks are active."""

    __slots__ = ("payload", "unpack")

    def __init__(self, payload: Any, unpack: Callable[[Any], Saved]) -> None:
        self.payload = payload
        self.unpack = unpack


class Node:
    """One recorded operation.

    Parameters
    ----------
    name
        Name of the operation, for messages.
    vjp
        Its vector-Jacobian product, a plain function.
    inputs
        For each input: its node, the leaf tensor itself, or None where no gradient can flow.
    saved
        Arrays that ``vjp`` needs.
    context
        Anything else that ``vjp`` needs: shapes, axes; no arrays.
    """

    __slots__ = ("__weakref__", "context", "inputs", "name", "released", "saved", "serial", "vjp")

    def __init__(
        self, name: str, vjp: VJP, inputs: tuple[Any, ...], saved: tuple[Saved | Packed | None, ...], context: Any
    ) -> None:
        self.name = name
        self.vjp = vjp
        self.inputs = inputs
        self.saved = saved
        self.context = context
        self.released = False
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return f"<{self.name} {self.serial}{' released' if self.released else ''}>"


@contextmanager
def changed_state(**values: Any) -> Iterator[None]:
    """Set fields of :data:`state` for the time of the ``with``."""
    before = {name: getattr(state, name) for name in values}
    try:
        for name, value in values.items():
            setattr(state, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(state, name, value)


def no_grad() -> Any:
    """Run without recording in this thread: a context manager."""
    return changed_state(recording=False)


def enable_grad() -> Any:
    """Run with recording in this thread, also inside :func:`no_grad`: a context manager."""
    return changed_state(recording=True)


def is_recording() -> bool:
    """Whether operations on tensors that need a gradient are recorded in this thread."""
    return state.recording


@contextmanager
def observe_uses(observer: Callable[[tuple[Tensor, ...]], None]) -> Iterator[None]:
    """Call ``observer(inputs)`` for the tensors used by each recorded operation.

    Observers of one thread may be opened and closed in any order.
    """
    state.observers = (*state.observers, observer)
    try:
        yield
    finally:
        remaining = list(state.observers)
        remaining.remove(observer)
        state.observers = tuple(remaining)


def saved_hooks(pack: Callable[[Saved], Any], unpack: Callable[[Any], Saved]) -> Any:
    """Replace what operations save: ``pack(saved)`` is kept instead, ``unpack`` of it gives the saved item again.

    Only the innermost hooks are applied.
    """
    return changed_state(hooks=(*state.hooks, (pack, unpack)))


@contextmanager
def log_storages() -> Iterator[list[weakref.ref[Array]]]:
    """Collect weak references to the storages of all tensors and saved arrays made inside."""
    log: list[weakref.ref[Array]] = []
    before = state.storages
    state.storages = (*before, log)
    try:
        yield log
    finally:
        state.storages = before


def base_of(array: Array) -> Array:
    """Return the array that owns the memory of ``array``."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def log_storage(array: Array) -> None:
    """Tell the open logs of a storage."""
    for log in state.storages:
        log.append(weakref.ref(base_of(array)))


def keep(saved: Saved) -> Saved | Packed:
    """Return what a node holds for ``saved``: itself, or what the innermost hooks make of it."""
    if not state.hooks:
        return saved
    pack, unpack_ = state.hooks[-1]
    return Packed(pack(saved), unpack_)


def unpack(item: Saved | Packed, name: str) -> Array:
    """Return the array of a kept item.

    Raises
    ------
    StaleGraphError
        If its tensor was written since it was saved.
    """
    saved = item.unpack(item.payload) if isinstance(item, Packed) else item
    if saved.counter is not None and saved.counter.value != saved.version:
        raise StaleGraphError(
            f"operation {name!r} needs a tensor of shape {saved.array.shape} that was changed in place after the forward "
            f"(saved at version {saved.version}, now at {saved.counter.value}); run the forward again after the change"
        )
    return saved.array


class Graph(NamedTuple):
    """What some tensors depend on: nodes, latest first, and leaf tensors."""

    nodes: list[Node]
    leaves: list[Tensor]


def next_serial() -> int:
    """Return a number above that of every node so far and below that of every later one."""
    return next(_serials)


def edge_of(tensor: Tensor) -> Node | Tensor:
    """Return what a node points at for this input: the tensor's node, or the leaf itself."""
    return tensor if tensor.node is None else tensor.node


def walk(tensors: Sequence[Tensor]) -> Graph:
    """Find everything that ``tensors`` depend on; changes nothing.

    Returns
    -------
    Graph
        ``nodes`` in reverse order of their making, which is a reverse topological order; ``leaves`` each once.
    """
    nodes: set[Node] = set()
    leaves: dict[int, Tensor] = {}
    stack: list[Any] = [edge_of(tensor) for tensor in reversed(tensors) if tensor.requires_grad]
    while stack:
        item = stack.pop()
        if type(item) is not Node:
            leaves[id(item)] = item
        elif item not in nodes:
            nodes.add(item)
            stack.extend(edge for edge in reversed(item.inputs) if edge is not None)
    return Graph(sorted(nodes, key=attrgetter("serial"), reverse=True), list(leaves.values()))


def release(nodes: Sequence[Node]) -> None:
    """Mark nodes as released and drop what they saved, whether or not a backward ran them."""
    for node in nodes:
        node.released = True
        node.saved = node.inputs = ()
        node.context = None


def check_unreleased(nodes: Sequence[Node]) -> None:
    """Raise ``GraphReleasedError`` if an earlier backward released one of the nodes."""
    for node in nodes:
        if node.released:
            raise GraphReleasedError(
                f"the graph of this loss was released at operation {node.name!r} by an earlier backward; "
                "pass retain_graph=True to that backward, or run the forward again"
            )


class Part(NamedTuple):
    """A cotangent that is zero but for ``values`` at the slices ``key``; many parts of one array need one buffer."""

    shape: tuple[int, ...]
    key: Any
    values: Array


class _Sums:
    """Cotangents by edge, summed without writing into an array that someone else may hold."""

    def __init__(self) -> None:
        self.totals: dict[int, Any] = {}
        self._own: set[int] = set()

    def add(self, key: int, cotangent: Any) -> None:
        total: Any = self.totals.get(key)
        if type(cotangent) is Part:
            if key not in self._own:
                shape, dtype = cotangent.shape, cotangent.values.dtype
                total = self.totals[key] = np.zeros(shape, dtype) if total is None else np.array(total)
                self._own.add(key)
            total[cotangent.key] += cotangent.values
        elif total is None:
            self.totals[key] = cotangent
        elif key in self._own:
            np.add(total, cotangent, out=total)
        else:
            self.totals[key] = np.asarray(np.add(total, cotangent))
            self._own.add(key)


def pass_cache() -> dict[Any, Any]:
    """Return the dictionary that lives as long as the running backward; for a recompute that serves many nodes."""
    if state.cache is None:
        raise RuntimeError("no backward is running in this thread")
    return state.cache


def _plan(nodes: Sequence[Node], wanted: set[int]) -> tuple[list[tuple[Node, tuple[bool, ...]]], set[int]]:
    """Select the nodes on a path to a wanted edge, and which inputs of each lie on one."""
    carrying = set(wanted)
    plan = []
    for node in reversed(nodes):
        needs = tuple(edge is not None and id(edge) in carrying for edge in node.inputs)
        if True in needs:
            carrying.add(id(node))
            plan.append((node, needs))
    plan.reverse()
    return plan, carrying


def vector_jacobian_product(
    outputs: Sequence[Tensor], cotangents: Sequence[Array | None], targets: Sequence[Tensor], graph: Graph | None = None
) -> list[Array | None]:
    """Multiply ``cotangents`` by the Jacobian of ``outputs`` with respect to ``targets``; changes nothing.

    Only operations between the outputs and a target are run.

    Parameters
    ----------
    outputs
        Recorded tensors.
    cotangents
        One array for each output, of its shape and dtype; None for 1 where the output has one element.
    targets
        Leaves or intermediate tensors.
    graph
        ``walk(outputs)``, if known already.

    Returns
    -------
    list of ndarray or None
        For each target an array of its shape and dtype that shares no memory with anything; None where not reached.

    Raises
    ------
    GraphReleasedError
        If a part of the graph was released.
    StaleGraphError
        If a needed value was changed in place after the forward.
    """
    vectors = [_fitting(cotangent, output) for output, cotangent in zip(outputs, cotangents, strict=True)]
    nodes = (walk(outputs) if graph is None else graph).nodes
    check_unreleased(nodes)
    wanted = {id(edge_of(target)) for target in targets if target.requires_grad}
    plan, carrying = _plan(nodes, wanted)
    sums = _Sums()
    for output, cotangent in zip(outputs, vectors, strict=True):
        if output.requires_grad and id(edge_of(output)) in carrying:
            sums.add(id(edge_of(output)), cotangent)
    # IEEE results (a derivative that is inf or nan) are the answer here, not a reason to warn.
    with changed_state(cache={}), np.errstate(all="ignore"):
        for node, needs in plan:
            key = id(node)
            whole = sums.totals.get(key) if key in wanted else sums.totals.pop(key, None)
            if whole is None:
                continue
            saved = tuple([item if item is None else unpack(item, node.name) for item in node.saved])
            for edge, needed, part in zip(node.inputs, needs, node.vjp(node.context, saved, whole, needs), strict=True):
                if needed and part is not None:
                    sums.add(id(edge), part)
    taken = {id(base_of(cotangent)) for cotangent in vectors}
    return [_own_result(sums.totals.get(id(edge_of(target))), target, taken) for target in targets]


def _fitting(cotangent: Array | None, output: Tensor) -> Array:
    if cotangent is None and output.size == 1:
        return np.ones(output.shape, output.dtype)
    if cotangent is None or cotangent.shape != output.shape or cotangent.dtype != output.dtype:
        given = "none" if cotangent is None else f"one of shape {cotangent.shape} and dtype {cotangent.dtype}"
        raise ValueError(
            f"an output of shape {output.shape} and dtype {output.dtype} needs a like cotangent, got {given}"
        )
    return cotangent


def _own_result(array: Any, target: Tensor, taken: set[int]) -> Array | None:
    """Return the array, or a copy if its memory is shared with anything or is oddly laid out."""
    if array is None:
        return None
    array = np.asarray(array, dtype=target.dtype)
    base = base_of(array)
    whole = base.size == array.size and array.flags.c_contiguous and array.flags.writeable and base.flags.owndata
    if not whole or id(base) in taken:
        array = base = np.array(array, order="C")
    taken.add(id(base))
    return array

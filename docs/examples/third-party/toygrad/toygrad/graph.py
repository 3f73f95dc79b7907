"""What operations leave behind, and the way back over it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from toygrad.tensor import Tensor

Array = Any
Pull = Callable[[Array], Sequence[Array | None]]


class State:
    """What recording depends on. There is one for the whole process: toygrad is for one thread."""

    recording = True
    use_hooks: tuple[Callable[[Tensor], Any], ...] = ()
    """Called with each trainable leaf that an operation reads while recording."""
    node_hooks: tuple[Callable[[Node, tuple[Tensor, ...]], Any], ...] = ()
    """Called with each new node and the tensors that the operation was given."""
    call_hooks: tuple[Callable[[Any], Any], ...] = ()
    """Called with each module that is about to run."""
    shared: dict[Any, Any] | None = None
    """Lives as long as the running pullback, for pulls that share work; None where none runs."""

    @contextlib.contextmanager
    def changed(self, **values: Any) -> Iterator[None]:
        """Set some of it for the time of the ``with``."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)


state = State()
_moments = itertools.count()


def moment() -> int:
    """Return a number above that of everything made so far, and below that of what is made later."""
    return next(_moments)


def no_record() -> contextlib.AbstractContextManager[None]:
    """Run without recording."""
    return state.changed(recording=False)


class ReleasedError(RuntimeError):
    """The graph, or a part of it, was given up."""


class StaleError(RuntimeError):
    """Something that the way back reads was overwritten since."""


class Memory:
    """Counts how often an array was written; tensors that are views of one array share it."""

    writes = 0


class Node:
    """A recorded operation.

    Parameters
    ----------
    shape
        Of the result.
    inputs
        What it was computed from.
    pull
        From the cotangent of the result to one for each input, None for an input without any.
    reads
        Memories of the arrays that ``pull`` reads, with their numbers of writes.
    """

    def __init__(
        self, shape: tuple[int, ...], inputs: tuple[Tensor, ...], pull: Pull, reads: tuple[tuple[Memory, int], ...]
    ) -> None:
        self.shape = shape
        # Never the tensors themselves, unless they are leaves: their arrays live only as long as someone needs them.
        self.sources: tuple[Any, ...] = tuple(x.source for x in inputs)
        self.dtypes = tuple(x.data.dtype for x in inputs)
        self.pull = pull
        self.reads = reads
        self.released = False
        self.serial = moment()

    @property
    def stale(self) -> bool:
        """Whether something was written that ``pull`` reads."""
        return any(memory.writes != writes for memory, writes in self.reads)


def below(tensors: Sequence[Tensor]) -> tuple[list[Node], list[Tensor]]:
    """Return the nodes that some tensors depend on, latest first, and the leaves."""
    nodes: dict[int, Node] = {}
    leaves: dict[int, Tensor] = {}
    waiting = [x.source for x in tensors]
    while waiting:
        source = waiting.pop()
        if isinstance(source, Node):
            if id(source) not in nodes:
                nodes[id(source)] = source
                waiting += reversed(source.sources)
        elif source is not None:
            leaves[id(source)] = source
    return sorted(nodes.values(), key=lambda node: -node.serial), list(leaves.values())


def release(nodes: Sequence[Node]) -> None:
    """Give up what some nodes hold; they can't be pulled any more."""
    for node in nodes:
        node.released, node.pull = True, _gone
        node.sources, node.reads, node.dtypes = (), (), ()


def _gone(cotangent: Array) -> Sequence[Array]:
    raise ReleasedError("this operation was released")


def pullback(
    tensors: Sequence[Tensor], cotangents: Sequence[Array | None], targets: Sequence[Tensor], nodes: Sequence[Node]
) -> list[Array | None]:
    """Carry cotangents back to some leaves or inner tensors; nothing is changed.

    Parameters
    ----------
    tensors, cotangents
        Where to begin; None is one.
    targets
        Where to arrive.
    nodes
        What ``below`` found for ``tensors``. Only nodes on the way to a target are pulled.

    Returns
    -------
    list
        An array for each target, None where it isn't reached.

    Raises
    ------
    ReleasedError, StaleError
        Before anything is pulled.
    """
    if any(node.released for node in nodes):
        raise ReleasedError("the graph, or a part of it, was released")
    wanted = {id(x.source) for x in targets if x.tracked}
    on_the_way = set(wanted)
    plan = []
    for node in reversed(nodes):
        if any(id(source) in on_the_way for source in node.sources):
            on_the_way.add(id(node))
            plan.append(node)
    if any(node.stale for node in plan):
        raise StaleError("a tensor that the way back reads was overwritten")
    found: dict[int, Array] = {}

    def arrive(source: Any, part: Array) -> None:
        if id(source) in on_the_way:
            found[id(source)] = found[id(source)] + part if id(source) in found else part

    with state.changed(shared={}), np.errstate(all="ignore"):  # a derivative that is inf or nan is an answer
        for x, cotangent in zip(tensors, cotangents, strict=True):
            arrive(x.source, np.ones_like(x.data) if cotangent is None else np.array(cotangent, x.data.dtype))
        for node in reversed(plan):
            if id(node) in found:
                parts = node.pull(found[id(node)] if id(node) in wanted else found.pop(id(node)))
                for source, dtype, part in zip(node.sources, node.dtypes, parts, strict=True):
                    if part is not None:
                        arrive(source, np.asarray(part, dtype))  # NumPy widens arrays without axes
    return [found.get(id(x.source)) if x.tracked else None for x in targets]

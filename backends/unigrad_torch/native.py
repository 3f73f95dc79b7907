"""The native engine: ``.backward()`` with all that hangs on it, its results taken from ``.grad``, which is afterwards as it was.

It serves models whose gradients are made by what runs after accumulation: reduction between processes, sharding, hooks. The loss is
differentiated with respect to the block's leaves in the graph, and to those that share a reduction with them, so
that no other ``.grad`` is written and no other hook runs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from unigrad.errors import GraphReleasedError, UnreducedError, UnsupportedError
from unigrad_torch import reducers, sharded, tape
from unigrad_torch.faults import translated
from unigrad_torch.slots import Probe, Slots, plainly
from unigrad_torch.usage import pause, resume

__all__ = ["Native"]

_REDUCED = "unigrad.reduced"
_HOOKS, _IS_LEAF = attrgetter("_backward_hooks"), attrgetter("is_leaf")
_retained: WeakSet[Any] = WeakSet()
"""Wrappers that have averaged in a backward that retained its graph."""
_lock = threading.RLock()
"""Held while slots are exchanged: parameters may belong to blocks of several threads."""


class _Traced:
    """The recorded graph, and the leaves that may get a gradient by it."""

    __slots__ = ("leaves", "recorded")

    def __init__(self, recorded: Any, leaves: Sequence[Any]) -> None:
        self.recorded = recorded
        self.leaves = leaves

    @property
    def released(self) -> str | None:
        """Name of a released node, or None."""
        name: str | None = self.recorded.released
        return name


class Native:
    """The engine of one collector; see :class:`unigrad.protocols.NativeEngine`."""

    def __init__(self) -> None:
        self._leaves: Sequence[Any] = ()
        self._own: set[int] = set()
        self._accumulate = "write"
        self._parameters = True
        self._wrappers: list[Any] = []
        self._shards = sharded.Shards(())
        self._undo: list[Any] = []
        self._unreduced: dict[int, Tensor] = {}

    def enter(self, leaves: Sequence[Any]) -> None:
        """Begin to watch forwards."""
        self._undo = sharded.Shards(leaves).watch()

    def close(self) -> None:
        """Stop."""
        undo, self._undo = self._undo, []
        for remove in undo:
            remove()
        self._wrappers = []
        self._shards = sharded.Shards(())

    def begin(self, leaves: Sequence[Any], accumulate: str, parameters: bool, weight: float | None) -> None:
        """Be told of the backward that follows."""
        self._leaves, self._accumulate, self._parameters = leaves, accumulate, parameters
        self._own = set(map(id, leaves))
        self._shards = sharded.Shards(leaves)
        self._wrappers = reducers.wrappers_of(leaves) if parameters else []
        if parameters and weight is not None and (self._wrappers or any(map(sharded.is_sharded, leaves))):
            raise UnsupportedError(
                "weight= with a model in several processes: each process would divide by its own total. Multiply the loss by its "
                "number of items, and scale by the number of processes over the total of all"
            )

    def require_reduced(self) -> None:
        """Raise ``UnreducedError`` if what was accumulated under no_sync() was not averaged since."""
        if self._unreduced:
            raise UnreducedError(
                "the gradients of the backward calls under no_sync() have not been averaged; run the last forward and backward outside "
                "of it, inside this collector"
            )

    def forget(self) -> None:
        """Drop what was accumulated under no_sync()."""
        self._unreduced = {}

    def trace(self, losses: Sequence[Any]) -> _Traced:
        """Walk the graph; the leaves are those of the block, by what other processes may have reached too."""
        recorded = tape.trace(losses)
        if self._shards:
            sharded.require_fresh(recorded.nodes)
        leaves = sharded.originals(recorded.leaves) if self._shards else recorded.leaves
        if not self._parameters or not (self._wrappers or self._shards):
            return _Traced(recorded, leaves)
        # Which of them get a gradient is known after the reduction: another process may have reached one that this one has not.
        foreign = {id(leaf): leaf for leaf in leaves if id(leaf) not in self._own}
        own = [leaf for leaf in self._leaves if leaf.requires_grad]
        return _Traced(recorded, [*own, *foreign.values()])

    def release(self, graph: _Traced) -> None:
        """Mark every node of the graph as released."""
        tape.release(graph.recorded)

    def vjp(
        self, graph: _Traced, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
    ) -> list[Any | None]:
        """Return the gradient of each target as the framework's own backward makes it."""
        if not any(id(target) in self._own for target in targets):
            # Gradients of watched tensors are those of this process's loss, which no reduction concerns.
            return tape.vjp(graph.recorded, cotangents, targets, retain=retain, create=create)
        if create:
            raise UnsupportedError(
                "create_graph=True with the native engine: what runs after accumulation is not recorded, and .grad would hold "
                "the graph that holds it"
            )
        if graph.released is not None:
            raise GraphReleasedError(f"this graph was released by an earlier backward, at {graph.released}")
        with _lock:
            return _Backward(self, graph.recorded, targets).run(cotangents, retain)


class _Backward:
    """One backward: what it may write, the run, and what it left."""

    def __init__(self, engine: Native, graph: Any, targets: Sequence[Any]) -> None:
        self._engine = engine
        self._graph = graph
        self._targets = targets
        self._shards = engine._shards
        self._local: set[int] = set()
        self._reached = reached = set(map(id, graph.leaves))
        self._reductions = [
            reducers.Reduction(wrapper)
            for wrapper in engine._wrappers
            if not reached.isdisjoint(map(id, wrapper._module_parameters))
        ]
        written = dict(zip(map(id, targets), targets, strict=True))
        inputs = list(targets)
        if self._reductions or self._shards:
            for shared in (self._shards.leaves(), *(reduction.parameters for reduction in self._reductions)):
                written.update(zip(map(id, shared), shared, strict=True))
            originals = sharded.originals(graph.leaves) if self._shards else graph.leaves
            inputs = [leaf for leaf, original in zip(graph.leaves, originals, strict=True) if id(original) in written]
            known = set(map(id, inputs))
            inputs += [target for target in targets if id(target) not in engine._own and id(target) not in known]
        self._written = written
        self._inputs = [leaf for leaf in inputs if leaf.requires_grad]

    def run(self, cotangents: Sequence[Any | None], retain: bool) -> list[Any | None]:
        """Check, differentiate, and take the results; on any error everything is as it was."""
        self._check()
        if not self._inputs:
            return [None] * len(self._targets)
        engine, graph = self._engine, self._graph
        dense = [one if one is None or one.layout is torch.strided else one.to_dense() for one in cotangents]
        given = {one.untyped_storage()._cdata for one in dense if one is not None}
        taking_part = {id(parameter) for reduction in self._reductions for parameter in reduction.parameters}
        pending = {key: value.clone() for key, value in engine._unreduced.items() if key in taking_part}
        slots = Slots(self._written.values(), pending, self._bucketed())
        probes: dict[int, Probe] = {}
        mode = pause()
        try:
            with plainly():
                for key, leaf in self._written.items():
                    hooks = leaf._post_accumulate_grad_hooks if leaf.is_leaf else None
                    if hooks:
                        probes[key] = Probe(leaf, hooks)
            tape.run_backward(graph.losses, dense, self._inputs, retain)
            self._local = reducers.left_over(self._reductions)
            with torch.no_grad(), plainly():
                if self._is_plain(probes, given):
                    found, unreduced = self._take_plainly(probes), {}
                else:
                    found, unreduced = self._take(probes, given)
        except BaseException as error:
            self._abandon()
            told = translated(error) if isinstance(error, RuntimeError) else None
            if told is None:
                raise
            raise told from error
        finally:
            resume(mode)
            for probe in probes.values():
                probe.remove()
            slots.restore()
        engine._unreduced = {
            **{key: value for key, value in engine._unreduced.items() if key not in taking_part},
            **unreduced,
        }
        if retain:
            self._mark()
        return found

    def _check(self) -> None:
        """Raise, before anything runs, for what is known to stay unreduced."""
        if self._shards:
            self._shards.check()
        averaged = [id(parameter) for reduction in self._reductions for parameter in reduction.parameters]
        # of two wrappers around one model, only one has run the forward
        known = not self._graph.custom and len(averaged) == len(set(averaged))
        for reduction in self._reductions:
            if not reduction.synchronizes and self._engine._accumulate == "write":
                raise UnsupportedError(
                    "backward under no_sync() with accumulate='write': the gradients of several backward calls are averaged "
                    "together; use accumulate='add'"
                )
            reduction.require_all(self._reached if known else None)
            if _retained and any(
                reduction.wrapper in node.metadata.get(_REDUCED, ()) for node in self._border(reduction)
            ):
                raise UnreducedError(
                    "DistributedDataParallel averages once for each forward, and has done so for this one in an earlier backward; "
                    "add the losses up and give them to one backward, or run the forward again"
                )

    def _border(self, reduction: reducers.Reduction) -> list[Any]:
        """Return the nodes of the graph that read a parameter of the wrapper."""
        averaged = {id(parameter) for parameter in reduction.parameters}
        return [
            node
            for node in self._graph.nodes
            if any(
                below is not None and id(getattr(below, "variable", None)) in averaged
                for below, _ in node.next_functions
            )
        ]

    def _mark(self) -> None:
        """Note in a retained graph what was averaged, since it will not be a second time."""
        for reduction in self._reductions:
            if not self._local.isdisjoint(map(id, reduction.parameters)):
                continue
            for node in self._border(reduction):
                node.metadata.setdefault(_REDUCED, WeakSet()).add(reduction.wrapper)
                _retained.add(reduction.wrapper)

    def _bucketed(self) -> set[int]:
        """Return the ids of parameters whose ``.grad`` may be a part of the memory in which their wrapper reduces."""
        return {
            id(parameter)
            for reduction in self._reductions
            if reduction.wrapper.gradient_as_bucket_view
            for parameter in reduction.parameters
        }

    def _take(self, probes: dict[int, Probe], given: set[int]) -> tuple[list[Any | None], dict[int, Tensor]]:
        """Return the gradient of each target, and what is to be carried to the next backward."""
        bucketed = self._bucketed()
        averaged = {id(parameter) for reduction in self._reductions for parameter in reduction.parameters}
        found: list[Any | None] = []
        unreduced: dict[int, Tensor] = {}
        for target in self._targets:
            key = id(target)
            gradient = target.grad if target.is_leaf or target.retains_grad else None
            probe = probes.get(key)
            if probe is not None and key in averaged:
                if probe.used:
                    raise UnreducedError(
                        "a hook took the gradient of a parameter of DistributedDataParallel away, or changed the parameter, before "
                        "it was averaged; step the optimizer after the backward"
                    )
                gradient = None if gradient is None else gradient.clone()
            elif probe is not None:
                gradient = probe.gradient()
            elif key in bucketed and gradient is not None:
                gradient = gradient.clone()
            if key in self._local:
                if gradient is not None:
                    unreduced[key] = gradient
                gradient = None
            found.append(self._apart(target, gradient, given))
        self._refuse_converted(found)
        return found, unreduced

    def _is_plain(self, probes: dict[int, Probe], given: set[int]) -> bool:
        """Whether every gradient is what the slots hold, in memory that is no user's and no wrapper's."""
        targets = self._targets
        return (
            not (self._shards or given or self._graph.custom or self._local)
            and not (self._reductions and (probes or self._bucketed()))
            and not any(map(_HOOKS, targets))
            and all(map(_IS_LEAF, targets))
        )

    def _take_plainly(self, probes: dict[int, Probe]) -> list[Any | None]:
        """Return the gradient of each target where that is so."""
        if probes:
            found = [
                probes[key].gradient() if key in probes else target.grad
                for key, target in zip(map(id, self._targets), self._targets, strict=True)
            ]
        else:
            found = [target.grad for target in self._targets]
        if all(gradient is not None and gradient.layout is torch.strided for gradient in found):
            return found
        self._refuse_converted(found)
        return [tape.apart(gradient, set(), False) for gradient in found]

    def _refuse_converted(self, found: Sequence[Any | None]) -> None:
        missing = [
            target
            for target, gradient in zip(self._targets, found, strict=True)
            if gradient is None and target.requires_grad
        ]
        tape.refuse_converted(self._graph, missing, [None] * len(missing))

    def _apart(self, target: Any, gradient: Any | None, given: set[int]) -> Any | None:
        if gradient is None or self._shards:
            return gradient
        return tape.apart(gradient, given, self._graph.custom or bool(target._backward_hooks))

    def _abandon(self) -> None:
        for reduction in self._reductions:
            with suppress(RuntimeError):
                reduction.abandon()
        if self._shards:
            self._shards.abandon()

"""One checkpointed call: what its recompute needs to be the forward again, and the proof that it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from unigrad import random, tree, turns
from unigrad.block import Block, Memory
from unigrad.buffers import copies, places
from unigrad.errors import RecomputeMismatchError, StaleGraphError
from unigrad.protocols import Backend, Entry
from unigrad.recompute import recomputing

__all__ = ["CheckpointRegion"]

PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class _Value:
    """One output leaf as it was in the forward."""

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    mark: Any = None
    kept: Any = None


class CheckpointRegion:
    """State at the forward of one call; satisfies :class:`unigrad.protocols.Region`.

    Parameters
    ----------
    backend
        The backend that runs it.
    function, args, kwargs
        The call.
    blocks
        Blocks whose parameters, buffers, modes and generators belong to the region.
    verify
        ``True``: compare fingerprints; ``"full"``: keep the outputs and name the first differing element; ``False``: compare
        structure, shapes and dtypes only.
    shared
        See ``Region.shared``.
    """

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        blocks: Sequence[Block],
        verify: bool | str,
        shared: dict[Any, Any] | None = None,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._backend = backend
        self._verify = verify
        self.shared = shared
        self.parameters: list[Any] = []
        self.places: list[Entry] = []
        self.buffers: list[Entry] = []
        self._marks: list[tuple[Any, bool]] = []
        self._versions: list[tuple[str, Any, Any]] = []
        self._buffers: list[Any] = []
        self._chosen: list[tuple[Memory, bool | None, set[str]]] = []
        self._models: list[Any] = []
        self._modes: list[Any] = []
        self._generators: list[Any] = []
        self._layers: frozenset[int] = frozenset()
        self._thread = turns.thread()
        self._take(blocks)
        self._random = random.snapshot(backend, self._generators)
        self._layout: tree.Layout | None = None
        self._values: list[_Value] = []
        self._own_changes: frozenset[str] = frozenset()

    def let_go(self) -> None:
        """Drop the arguments; see ``Region.let_go``."""
        self.args, self.kwargs = (), {}

    def _take(self, blocks: Sequence[Block]) -> None:
        """Take note of all that belongs to some blocks, as it is now."""
        primitive = self._backend.block
        named = [(name, tensor) for block in blocks for name, tensor in block.parameters.items()]
        marks = [(tensor, primitive.trainable(tensor)) for _, tensor in named]
        self._marks += marks
        self.parameters += [tensor for tensor, trainable in marks if trainable]
        self.places += [
            entry
            for block in blocks
            for entry in block.structure().parameters
            if entry.owner is not None and entry.tensor is not None
        ]
        self._versions += [(name, tensor, self._backend.arrays.version(tensor)) for name, tensor in named]
        self._layers = self._layers.union(*(block.layers() for block in blocks))
        entries = places(blocks)
        self.buffers += entries
        self._buffers += copies(self._backend, [entry.tensor for entry in entries])
        parts = [part for block in blocks for _, part in block.parts()]
        self._chosen += [(part.memory, part.memory.training, set(part.memory.frozen_buffers)) for part in parts]
        models = [part.inner for part in parts if part.inner is not None]
        self._models += models
        self._modes += [primitive.modes(model) for model in models]
        self._generators += [item for block in blocks for item in block.structure().generators.values()]

    def meet(self, block: Block) -> None:
        """Take in the block of a model that the function is about to call and that nobody had named."""
        before = len(self._generators)
        self._take([block])
        fresh = random.snapshot(self._backend, self._generators[before:]).generators
        known = {id(generator) for generator, _ in self._random.generators}
        added = tuple((generator, state) for generator, state in fresh if id(generator) not in known)
        self._random = replace(self._random, generators=self._random.generators + added)

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Surround a recompute with the random state, buffers and modes of the forward; see ``Region.replay``."""
        changed = self._changed()
        if changed:
            if self._own_changes.issuperset(changed):
                raise StaleGraphError(
                    f"a checkpointed region changes its own parameters in its forward ({', '.join(changed)}), so that it cannot be run "
                    "again; leave the layer that does so (e.g. an embedding with max_norm) outside of it"
                )
            raise StaleGraphError(
                f"parameters of a checkpointed region were changed between forward and backward: {', '.join(changed)}; "
                "run the forward again after a step"
            )
        with turns.Turn(self._layers, True, self._thread), self._as_it_was():
            yield

    @contextmanager
    def _as_it_was(self) -> Iterator[None]:
        primitive = self._backend.block
        live_random = random.snapshot(self._backend, self._generators)
        live_marks = [(tensor, not mark) for tensor, mark in self._marks if primitive.trainable(tensor) != mark]
        live_chosen = [(memory, memory.training, memory.frozen_buffers) for memory, _, _ in self._chosen]
        live_modes = [primitive.modes(model) for model in self._models]
        live_buffers = primitive.swap(self.buffers, copies(self._backend, self._buffers))
        try:
            # What was frozen or unfrozen since would save other values.
            for tensor, mark in live_marks:
                primitive.set_trainable(tensor, not mark)
            for memory, training, frozen in self._chosen:
                memory.training, memory.frozen_buffers = training, frozen
            for model, modes in zip(self._models, self._modes, strict=True):
                primitive.set_modes(model, modes)
            self._random.restore()
            with recomputing():
                yield
        finally:
            for tensor, mark in live_marks:
                primitive.set_trainable(tensor, mark)
            for memory, training, frozen in live_chosen:
                memory.training, memory.frozen_buffers = training, frozen
            primitive.swap(self.buffers, live_buffers)
            for model, modes in zip(self._models, live_modes, strict=True):
                primitive.set_modes(model, modes)
            live_random.restore()

    def _changed(self) -> list[str]:
        version_of = self._backend.arrays.version
        return [name for name, tensor, version in self._versions if version_of(tensor) != version]

    def finish(self, outputs: Any) -> None:
        """Take note of the forward's outputs."""
        self._own_changes = frozenset(self._changed())
        with self._backend.tape.no_record():
            leaves, self._layout = tree.flatten(outputs)
            self._values = [self._describe(leaf, keep=self._verify == "full") for leaf in leaves]

    def _describe(self, leaf: Any, keep: bool) -> _Value:
        arrays = self._backend.arrays
        if not arrays.is_tensor(leaf):
            return _Value(type(leaf).__name__, mark=leaf if isinstance(leaf, PLAIN) else None)
        mark = self._backend.checkpoint.fingerprint(leaf) if self._verify is True else None
        return _Value("tensor", arrays.shape(leaf), arrays.dtype(leaf), mark, arrays.clone(leaf) if keep else None)

    def check(self, outputs: Any) -> None:
        """Raise ``RecomputeMismatchError`` unless the outputs are those of the forward."""
        with self._backend.tape.no_record():
            leaves, layout = tree.flatten(outputs)
            if layout != self._layout:
                raise self._mismatch("the nesting of its outputs", self._layout, layout)
            for path, old, leaf in zip(layout.paths("output"), self._values, leaves, strict=True):
                new = self._describe(leaf, keep=self._verify == "full")
                if (old.kind, old.shape, old.dtype) != (new.kind, new.shape, new.dtype):
                    raise self._mismatch(
                        path, f"{old.kind} {old.dtype} {old.shape}", f"{new.kind} {new.dtype} {new.shape}"
                    )
                if old.kept is not None and not self._backend.arrays.equal(old.kept, new.kept):
                    raise self._mismatch(path, *self._first_difference(old.kept, new.kept))
                if not (old.mark == new.mark or (old.mark != old.mark and new.mark != new.mark)):
                    if old.kind != "tensor":
                        raise self._mismatch(path, repr(old.mark), repr(new.mark))
                    raise self._mismatch(path, "certain values", "others (verify='full' names the first one)")

    def _first_difference(self, old: Any, new: Any) -> tuple[str, str]:
        to_numpy = self._backend.arrays.to_numpy
        a, b = to_numpy(old), to_numpy(new)
        where = next(index for index in _indices(a.shape) if a[index].tobytes() != b[index].tobytes())
        return f"{a[where]!r} at {where}", f"{b[where]!r}"

    @staticmethod
    def _mismatch(what: str, forward: Any, recompute: Any) -> RecomputeMismatchError:
        return RecomputeMismatchError(
            f"the recompute of a checkpointed region differs from its forward in {what}: the forward gave {forward}, the "
            f"recompute {recompute}. The function must do the same on each call: look for state that it changes or reads "
            "(counters, flags, layers replaced after the forward, parameters written through a view or a foreign array) and for "
            "unregistered random generators"
        )


def _indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    import numpy as np

    return iter(np.ndindex(*shape))

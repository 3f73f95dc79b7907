"""A native model as named parameters and buffers, with one rule for modes, freezing and state."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from unigrad import names, recording
from unigrad import state as portable
from unigrad.errors import ArgumentTypeError, NotBuiltError, UnsupportedError
from unigrad.freezing import Rules
from unigrad.frozen import Frozen
from unigrad.protocols import ArraysModule, Backend, Structure
from unigrad.table import Table, table_of
from unigrad.turns import Turn, taken
from unigrad.unpickled import Unpickled

__all__ = ["Block", "Memory"]


@dataclass
class Memory:
    """What lasts as long as the model: used names, told warnings, chosen mode, frozen and checked patterns.

    It never refers to the model, so that it does not keep it alive.
    """

    registered: set[str] = field(default_factory=set)
    told: set[Hashable] = field(default_factory=set)
    training: bool | None = None
    rules: Rules = field(default_factory=Rules)
    frozen_buffers: set[str] = field(default_factory=set)
    expected: set[str] = field(default_factory=set)


class Block(Unpickled):
    """A native model with named parameters; made by :func:`wrap`.

    Attributes
    ----------
    native
        The wrapped object; None for a block made of a mapping.
    inner
        The model inside wrappers that change nothing (a compiled or distributed one); else ``native`` itself.
    backend
        The backend that serves it.

    Notes
    -----
    Calling the block is the native call plus the block's mode. Clauses B1 to B9.
    """

    _instead = "write its state with save(path), or copy.deepcopy a block of one model"
    _layers: tuple[Structure, frozenset[int]] | None = None

    def __init__(self, native: Any, backend: Backend, memory: Memory) -> None:
        self.native = native
        self.backend = backend
        self.memory = memory
        self.inner = backend.block.unwrap(native)
        self._structure: Structure | None = None
        self._names: Table | None = None

    def structure(self) -> Structure:
        """Return the present structure of the model; it is described anew only when the model has changed."""
        fresh = self.backend.block.structure(self.inner, self._structure)
        if fresh is not self._structure:
            self._structure = fresh
            self._names = table_of(fresh)
            if self.memory.rules:
                self._follow_rules(self._names)
        return fresh

    def layers(self) -> frozenset[int]:
        """Return the ids of the model and of its layers that a call may change, as last looked at, for :class:`unigrad.turns.Turn`."""
        structure = self._structure if self._structure is not None else self.structure()
        if self._layers is None or self._layers[0] is not structure:
            owners = [entry.owner for entry in structure.buffers]
            models = [part.inner for _, part in self.parts()]
            ids = frozenset(id(found) for found in (*owners, *structure.norms.values(), *models) if found is not None)
            self._layers = structure, ids
        return self._layers[1]

    def writes(self) -> bool:
        """Whether a call may write buffers: it is in training mode, and there were some when the structure was last looked at."""
        structure = self._structure if self._structure is not None else self.structure()
        return bool(structure.buffers) and self.training

    def _look(self) -> None:
        self.structure()

    def table(self) -> Table:
        """Return the names of the present structure."""
        self.structure()
        assert self._names is not None  # structure() has just made it
        return self._names

    def engine(self) -> str:
        """Return the name of the engine that serves the model as it was when the structure was last looked at."""
        structure = self._structure if self._structure is not None else self.structure()
        return self.backend.tape.engine(self.native, structure)

    def parts(self) -> Sequence[tuple[str, Block]]:
        """Return the blocks that this one consists of, with the prefixes of their names."""
        return (("", self),)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Ordered mapping of structural name to native parameter, each parameter once."""
        return self.table().parameters

    @property
    def aliases(self) -> Mapping[str, str]:
        """Further names of tied parameters, mapped to the canonical name."""
        return self.table().aliases

    @property
    def buffers(self) -> Mapping[str, Any]:
        """Ordered mapping of name to native buffer."""
        return self.table().buffers

    @property
    def roles(self) -> Mapping[str, str]:
        """Role of each parameter, e.g. ``"dense"``, from which its layout follows."""
        table = self.table()
        return {name: table.entries[name].role for name in table.parameters}

    @property
    def pending(self) -> tuple[str, ...]:
        """Paths of layers whose parameters do not exist yet."""
        return self.structure().pending

    @property
    def waits(self) -> bool:
        """Whether layers without parameters were there when the structure was last looked at; costs nothing."""
        return self._structure is not None and bool(self._structure.pending)

    @property
    def registered(self) -> tuple[str, ...]:
        """Names used in any recorded forward so far, in the order of ``parameters``."""
        return tuple(name for name in self.parameters if name in self.memory.registered)

    @property
    def random_state(self) -> Mapping[str, Any]:
        """Random generators that the model owns, by path."""
        return MappingProxyType(dict(self.structure().generators))

    @property
    def training(self) -> bool:
        """Mode of the model: the one chosen through the block, else the native one."""
        chosen = self.memory.training
        return chosen if chosen is not None else self.backend.block.training(self.inner)

    def native_name(self, name: str) -> str:
        """Return the framework's own name of a parameter or buffer."""
        table = self.table()
        entry = table.entries.get(table.aliases.get(name, name))
        if entry is None:
            raise names.explain_no_match(name, table.entries, "names")
        return entry.native_name

    def train(self) -> Block:
        """Choose the training mode for every call through the block, and return the block."""
        return self._set_mode(True)

    def eval(self) -> Block:
        """Choose the inference mode for every call through the block, and return the block."""
        return self._set_mode(False)

    def _set_mode(self, training: bool) -> Block:
        self.memory.training = training
        self.backend.block.set_training(self.inner, training)
        return self

    def freeze(self, pattern: str = "*") -> Block:
        """Freeze what fits the pattern: no gradient, and no change of a buffer by a call through the block.

        Parameters
        ----------
        pattern
            Pattern of names or of paths of layers, e.g. ``"encoder"`` or ``"*.bias"``; see :func:`unigrad.names.matches`.

        Returns
        -------
        Block
            The block itself.

        Raises
        ------
        ArgumentError
            If nothing fits.

        Notes
        -----
        A normalization layer whose parameters are all frozen uses its running statistics and leaves them alone, also
        in training mode. A pattern that fits a layer without parameters yet takes effect when they are created.
        """
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"freeze takes a pattern of names, not {pattern!r}")
        table = self.table()
        self._ask(pattern, True, "freezes", table)
        return self

    def _ask(self, pattern: str, frozen: bool, action: str, table: Table) -> None:
        found = {
            table.aliases.get(name, name) for name in (*table.entries, *table.aliases) if names.matches(name, pattern)
        }
        if not found and not any(names.matches(layer, pattern) for layer in self.pending):
            raise names.explain_no_match(pattern, [*table.entries, *self.pending], action)
        self.memory.rules.ask(pattern, frozen)
        for name in found:
            self._follow(name, table)
            self._set_frozen(name, frozen, table)

    def _follow_rules(self, table: Table) -> None:
        """Freeze what has come since it was asked for."""
        further: dict[str, list[str]] = {}
        for alias, name in table.aliases.items():
            further.setdefault(name, []).append(alias)
        for name in table.entries:
            if self._follow(name, table) and self.memory.rules.frozen([name, *further.get(name, ())]):
                self._set_frozen(name, True, table)

    def _follow(self, name: str, table: Table) -> bool:
        # A forward may replace a buffer, which is the same one by its name.
        return self.memory.rules.follow(name, table.parameters.get(name))

    def _set_frozen(self, name: str, frozen: bool, table: Table) -> None:
        primitive = self.backend.block
        if name in table.buffers:
            (self.memory.frozen_buffers.add if frozen else self.memory.frozen_buffers.discard)(name)
            return
        tensor = table.parameters[name]
        if primitive.trainable(tensor) if frozen else _can_train(self.backend.arrays, tensor):
            primitive.set_trainable(tensor, not frozen)

    def unfreeze(self, pattern: str = "*") -> Block:
        """Undo :meth:`freeze` for what fits the pattern, and return the block; ``ArgumentError`` if nothing fits."""
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"unfreeze takes a pattern of names, not {pattern!r}")
        self._ask(pattern, False, "unfreezes", self.table())
        return self

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the native model in the block's mode."""
        if self.native is None:
            raise UnsupportedError("a block made of a mapping of tensors has no call; call your own function")
        return self._call(self.native, args, kwargs)

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        frozen = self.frozen()
        if self.memory.rules and self.waits:
            with self._following():
                return self._call_holding(frozen, target, args, kwargs)
        return self._call_holding(frozen, target, args, kwargs)

    def _call_holding(
        self, frozen: Frozen | None, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        primitive, chosen = self.backend.block, self.memory.training
        if frozen is not None:
            with Turn(self.layers(), True), frozen.unchanged():
                return primitive.call(target, args, kwargs, chosen, frozen.norms)
        if chosen is None and not (self._structure is not None and self._structure.buffers):
            return primitive.call(target, args, kwargs, None, ())
        with taken(self.layers(), self._writes_or_switches):
            return primitive.call(target, args, kwargs, chosen, ())

    def _writes_or_switches(self) -> bool:
        chosen = self.memory.training
        return self.writes() or (chosen is not None and self.backend.block.training(self.inner) != chosen)

    @contextmanager
    def _following(self) -> Iterator[None]:
        """Freeze what layers create that are built by this call, before they use it."""
        undo = self.backend.block.on_built(self.inner, self._look)
        try:
            yield
        finally:
            undo()

    def frozen(self) -> Frozen | None:
        """Return what a call through the block must hold as it is now; None if that is nothing."""
        # A collector has looked when it was entered; that is most of what a call through the block costs.
        known = self._structure if recording.listens(self) and not self.memory.rules else None
        structure = self.structure() if known is None else known
        if not structure.norms and not self.memory.frozen_buffers:
            return None
        if known is not None:
            structure = self.structure()
        norms = self._frozen_norms(structure)
        paths = {path for path, layer in structure.norms.items() if any(layer is norm for norm in norms)}
        buffers = [
            entry
            for entry in structure.buffers
            if entry.name in self.memory.frozen_buffers and entry.layer not in paths and entry.tensor is not None
        ]
        return Frozen(self.backend, self.inner, tuple(norms), tuple(buffers)) if norms or buffers else None

    def _frozen_norms(self, structure: Structure) -> list[Any]:
        trainable, computed = self.backend.block.trainable, self.backend.arrays.requires_gradient
        own: dict[str, list[bool]] = {path: [] for path in structure.norms}
        for entry in structure.parameters:
            if entry.layer in own and entry.tensor is not None:
                own[entry.layer].append(trainable(entry.tensor) or computed(entry.tensor))
        named = {entry.layer for entry in structure.buffers if entry.name in self.memory.frozen_buffers}
        return [
            layer
            for path, layer in structure.norms.items()
            if (own[path] and not any(own[path])) or (not own[path] and path in named)
        ]

    def require_built(self) -> None:
        """Raise ``NotBuiltError`` naming the layers whose parameters do not exist yet."""
        if self.pending:
            raise NotBuiltError(
                f"these layers have no parameters yet: {', '.join(self.pending)}; call the block once on an example input first"
            )

    def state(self) -> dict[str, Any]:
        """Return copies of all parameters and buffers as C-contiguous NumPy arrays, by canonical name."""
        return portable.collect(self)

    def load_state(self, arrays: Mapping[str, Any], strict: bool = True) -> portable.LoadReport:
        """Write arrays into the parameters and buffers, all or none.

        Parameters
        ----------
        arrays
            Name -> array of the same shape and dtype; further names of tied parameters are allowed.
        strict
            Whether every name of the block must be there and no other. Shapes and dtypes must fit in any case.

        Returns
        -------
        LoadReport
            Names that were missing and unexpected (both empty if ``strict``).

        Raises
        ------
        StateMismatchError
            Listing every mismatch; nothing was changed.
        NotBuiltError
            If layers have no parameters yet.
        """
        return portable.load_arrays(self, arrays, strict)

    def save(self, path: Any) -> None:
        """Write the state, roles and ties to a safetensors file, whole or not at all."""
        portable.save(self, path)

    def load(self, path: Any, strict: bool = True) -> portable.LoadReport:
        """Read what :meth:`save` wrote; ``StateFileError`` or ``StateMismatchError`` change nothing."""
        return portable.load(self, path, strict)

    def __copy__(self) -> Block:
        return self  # a model has one block

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        if self.native is None:
            raise UnsupportedError("a block made of a mapping of tensors can't be copied; copy what holds the tensors")
        from unigrad.wrapping import wrap  # wrapping imports this module

        twin = wrap(self.backend.block.copy(self.native))
        twin.memory.registered |= self.memory.registered
        twin.memory.training = self.memory.training
        for name in twin.table().entries:  # the copied tensors are frozen as they were
            twin._follow(name, twin.table())
        twin.memory.rules.adopt(self.memory.rules)
        twin.memory.frozen_buffers |= self.memory.frozen_buffers
        memo[id(self)] = twin
        return twin

    def __repr__(self) -> str:
        what = type(self.native).__name__ if self.native is not None else "mapping"
        table = self.table()
        waiting = f", {len(self.pending)} pending layers" if self.pending else ""
        return (
            f"<Block of {self.backend.spec.name} {what}: "
            f"{len(table.parameters)} parameters, {len(table.buffers)} buffers{waiting}>"
        )


def _can_train(primitive: ArraysModule, tensor: Any) -> bool:
    return primitive.is_floating(tensor) or primitive.dtype(tensor).startswith("complex")

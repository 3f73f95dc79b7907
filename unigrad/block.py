"""A native model as named parameters and buffers, with one rule for modes, freezing and state."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from unigrad import names
from unigrad import state as portable
from unigrad.errors import ArgumentError, ArgumentTypeError, BackendMismatchError, NotBuiltError, UnsupportedError
from unigrad.plugins import backend_of
from unigrad.protocols import Backend, Entry, Structure

__all__ = ["Block", "Table", "join", "wrap"]


@dataclass
class Memory:
    """What lasts as long as the model: used names, told warnings, chosen mode, frozen and checked patterns.

    It never refers to the model, so that it does not keep it alive.
    """

    registered: set[str] = field(default_factory=set)
    told: set[Hashable] = field(default_factory=set)
    training: bool | None = None
    frozen: list[str] = field(default_factory=list)
    frozen_buffers: set[str] = field(default_factory=set)
    expected: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Table:
    """Names of one structure, looked up both ways."""

    parameters: Mapping[str, Any]
    aliases: Mapping[str, str]
    buffers: Mapping[str, Any]
    name_of: Mapping[int, str]
    entries: Mapping[str, Entry]


def _table(structure: Structure) -> Table:
    parameters: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    name_of: dict[int, str] = {}
    entries: dict[str, Entry] = {}
    for entry in structure.parameters:
        if entry.tensor is None:
            continue
        canonical = name_of.get(id(entry.tensor))
        if canonical is not None:
            if entry.name != canonical:
                aliases[entry.name] = canonical
            continue
        name_of[id(entry.tensor)] = entry.name
        parameters[entry.name] = entry.tensor
        entries[entry.name] = entry
    buffers: dict[str, Any] = {}
    for entry in structure.buffers:
        if entry.tensor is not None and entry.name not in buffers:
            buffers[entry.name] = entry.tensor
            entries[entry.name] = entry
    return Table(
        MappingProxyType(parameters),
        MappingProxyType(aliases),
        MappingProxyType(buffers),
        name_of,
        MappingProxyType(entries),
    )


@dataclass(frozen=True)
class Frozen:
    """What a call must hold: normalization layers in inference mode, and buffers that keep their values.

    Parameters
    ----------
    backend, model
        The backend and the (unwrapped) model.
    norms
        Frozen normalization layers.
    buffers
        Frozen buffers of other layers.
    """

    backend: Backend
    model: Any
    norms: tuple[Any, ...]
    buffers: tuple[Entry, ...]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a call write into copies of the frozen buffers, which are then thrown away."""
        if not self.buffers:
            yield
            return
        primitive = self.backend.block
        # What stands there now may not be what stood there when this was made: a recompute exchanges buffers too.
        live = primitive.swap(self.buffers, [entry.tensor for entry in self.buffers])
        primitive.swap(self.buffers, [primitive.clone(tensor) for tensor in live])
        try:
            yield
        finally:
            primitive.swap(self.buffers, live)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Surround a forward that runs inside the native call, so that its mode is already chosen."""
        primitive = self.backend.block
        modes = primitive.modes(self.model)
        try:
            for layer in self.norms:
                primitive.set_training(layer, False)
            with self.unchanged():
                yield
        finally:
            primitive.set_modes(self.model, modes)


class Block:
    """A native model with named parameters; made by :func:`wrap`.

    Attributes
    ----------
    native
        The wrapped object; None for a block made of a mapping.
    backend
        The backend that serves it.

    Notes
    -----
    Calling the block is the native call plus the block's mode. Clauses B1 to B9.
    """

    def __init__(self, native: Any, backend: Backend, memory: Memory) -> None:
        self.native = native
        self.backend = backend
        self.memory = memory
        self._inner = backend.block.unwrap(native)
        self._structure: Structure | None = None
        self._names: Table | None = None

    def structure(self) -> Structure:
        """Return the present structure of the model; it is described anew only when the model has changed."""
        fresh = self.backend.block.structure(self._inner, self._structure)
        if fresh is not self._structure:
            self._structure = fresh
            self._names = _table(fresh)
            for pattern in self.memory.frozen:
                self._freeze_matching(pattern, self._names)
        return fresh

    def table(self) -> Table:
        """Return the names of the present structure."""
        self.structure()
        assert self._names is not None  # structure() has just made it
        return self._names

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
        return chosen if chosen is not None else self.backend.block.training(self._inner)

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
        self.backend.block.set_training(self._inner, training)
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
        pending = [layer for layer in self.pending if names.matches(layer, pattern)]
        if not self._freeze_matching(pattern, table) and not pending:
            raise names.explain_no_match(pattern, [*table.entries, *self.pending], "freezes")
        self.memory.frozen.append(pattern)
        return self

    def _freeze_matching(self, pattern: str, table: Table) -> bool:
        primitive = self.backend.block
        hit = False
        for name, entry in table.entries.items():
            if not names.matches(name, pattern):
                continue
            hit = True
            if name in table.buffers:
                self.memory.frozen_buffers.add(name)
            elif primitive.is_floating(entry.tensor):
                primitive.set_trainable(entry.tensor, False)
        for alias, name in table.aliases.items():
            if names.matches(alias, pattern):
                hit = True
                primitive.set_trainable(table.parameters[name], False)
        return hit

    def unfreeze(self, pattern: str = "*") -> Block:
        """Undo :meth:`freeze` for what fits the pattern, and return the block; ``ArgumentError`` if nothing fits."""
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"unfreeze takes a pattern of names, not {pattern!r}")
        table = self.table()
        primitive = self.backend.block
        hit = False
        for name in [*table.entries, *table.aliases]:
            if not names.matches(name, pattern):
                continue
            hit = True
            self.memory.frozen_buffers.discard(name)
            tensor = table.parameters.get(table.aliases.get(name, name))
            if tensor is not None and primitive.is_floating(tensor):
                primitive.set_trainable(tensor, True)
        if not hit and not any(names.matches(layer, pattern) for layer in self.pending):
            raise names.explain_no_match(pattern, [*table.entries, *self.pending], "unfreezes")
        # A pattern frozen earlier must not freeze again what is created later under the pattern that was undone.
        self.memory.frozen = [old for old in self.memory.frozen if not names.matches(old, pattern)]
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the native model in the block's mode."""
        if self.native is None:
            raise UnsupportedError("a block made of a mapping of tensors has no call; call your own function")
        return self._call(self.native, args, kwargs)

    def _call(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        frozen = self.frozen()
        if frozen is None:
            return self.backend.block.call(target, args, kwargs, self.memory.training, ())
        with frozen.unchanged():
            return self.backend.block.call(target, args, kwargs, self.memory.training, frozen.norms)

    def frozen(self) -> Frozen | None:
        """Return what a call through the block must hold as it is now; None if that is nothing."""
        structure = self._structure if self._structure is not None else self.structure()
        if not structure.norms and not self.memory.frozen_buffers:
            return None
        structure = self.structure()
        norms = self._frozen_norms(structure)
        paths = {path for path, layer in structure.norms.items() if any(layer is norm for norm in norms)}
        buffers = [
            entry
            for entry in structure.buffers
            if entry.name in self.memory.frozen_buffers and entry.layer not in paths and entry.tensor is not None
        ]
        return Frozen(self.backend, self._inner, tuple(norms), tuple(buffers)) if norms or buffers else None

    def _frozen_norms(self, structure: Structure) -> list[Any]:
        trainable = self.backend.block.trainable
        own: dict[str, list[bool]] = {path: [] for path in structure.norms}
        for entry in structure.parameters:
            if entry.layer in own and entry.tensor is not None:
                own[entry.layer].append(trainable(entry.tensor))
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

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        if self.native is None:
            raise UnsupportedError("a block made of a mapping of tensors can't be copied; copy what holds the tensors")
        twin = wrap(self.backend.block.copy(self.native))
        twin.memory = Memory(
            set(self.memory.registered),
            set(),
            self.memory.training,
            list(self.memory.frozen),
            set(self.memory.frozen_buffers),
        )
        _memories[_key(twin.native)] = twin.memory
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


class JoinedBlock(Block):
    """Several blocks as one, names prefixed; made by :func:`join`."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self._blocks = dict(blocks)
        first = next(iter(self._blocks.values()))
        self.native = None
        self.backend = first.backend
        self.memory = Memory()
        self._inner = None
        self._structure = None
        self._names = None
        self._seen: tuple[Structure, ...] = ()

    def structure(self) -> Structure:
        """Return the joined structure, made anew only when one of the parts has changed."""
        seen = tuple(block.structure() for _, block in self.parts())
        if (
            self._structure is None
            or len(seen) != len(self._seen)
            or any(a is not b for a, b in zip(seen, self._seen, strict=True))
        ):
            self._seen = seen
            parameters: list[Entry] = []
            buffers: list[Entry] = []
            pending: list[str] = []
            norms: dict[str, Any] = {}
            generators: dict[str, Any] = {}
            for (prefix, _), part in zip(self.parts(), seen, strict=True):
                parameters += [_prefixed(entry, prefix) for entry in part.parameters]
                buffers += [_prefixed(entry, prefix) for entry in part.buffers]
                pending += [prefix + path for path in part.pending]
                norms |= {prefix + path: layer for path, layer in part.norms.items()}
                generators |= {prefix + path: item for path, item in part.generators.items()}
            self._structure = Structure(tuple(parameters), tuple(buffers), tuple(pending), norms, generators)
            self._names = _table(self._structure)
        return self._structure

    def parts(self) -> Sequence[tuple[str, Block]]:
        """Return the joined blocks with their prefixes."""
        return [(f"{prefix}.{inner}", part) for prefix, block in self._blocks.items() for inner, part in block.parts()]

    @property
    def registered(self) -> tuple[str, ...]:
        """Names used in any recorded forward so far."""
        used = {prefix + name for prefix, part in self.parts() for name in part.memory.registered}
        return tuple(name for name in self.parameters if name in used)

    @property
    def training(self) -> bool:
        """Whether all parts are in training mode."""
        return all(block.training for _, block in self.parts())

    def _set_mode(self, training: bool) -> Block:
        for block in self._blocks.values():
            block._set_mode(training)
        return self

    def freeze(self, pattern: str = "*") -> Block:
        """Freeze what fits the pattern of prefixed names."""
        return self._each(pattern, "freezes")

    def unfreeze(self, pattern: str = "*") -> Block:
        """Unfreeze what fits the pattern of prefixed names."""
        return self._each(pattern, "unfreezes")

    def _each(self, pattern: str, action: str) -> Block:
        if not isinstance(pattern, str):
            raise ArgumentTypeError(f"a pattern of names is needed, not {pattern!r}")
        hit = False
        for prefix, part in self.parts():
            table = part.table()
            inside = [*table.entries, *table.aliases, *part.pending]
            for name in inside:
                if names.matches(prefix + name, pattern):
                    hit = True
                    part.freeze(name) if action == "freezes" else part.unfreeze(name)
        if not hit:
            raise names.explain_no_match(pattern, self.table().entries, action)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a joined block has several calls."""
        raise UnsupportedError(
            f"a joined block has no call of its own; call one of its parts: {', '.join(self._blocks)}"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        raise UnsupportedError("a joined block can't be copied; copy its parts and join the copies")


def _prefixed(entry: Entry, prefix: str) -> Entry:
    layer = prefix + entry.layer if entry.layer else prefix.removesuffix(".")
    return Entry(prefix + entry.name, entry.native_name, entry.tensor, entry.role, layer, entry.owner, entry.key)


_memories: dict[Hashable, Memory] = {}
_blocks: weakref.WeakValueDictionary[Hashable, Block] = weakref.WeakValueDictionary()


def _key(native: Any) -> Hashable:
    if isinstance(native, Mapping):
        return tuple((name, id(tensor)) for name, tensor in native.items())
    return id(native)


def _forget(key: Hashable) -> None:
    _memories.pop(key, None)
    _blocks.pop(key, None)


def _remember(native: Any, make: Callable[[Memory], Block]) -> Block:
    key = _key(native)
    block = _blocks.get(key)
    if block is not None:
        return block
    memory = _memories.get(key)
    if memory is None:
        memory = _memories[key] = Memory()
        # The key holds the ids of all tensors of a mapping, so it means something while all of them live.
        for anchor in native.values() if isinstance(native, Mapping) else (native,):
            weakref.finalize(anchor, _forget, key).atexit = False
    block = make(memory)
    _blocks[key] = block
    return block


def wrap(model: Any) -> Block:
    """Return the block of a native model, layer or mapping of names to trainable tensors.

    Parameters
    ----------
    model
        A native model of any installed backend, a block (returned as it is), or a mapping of name to native trainable tensor (a
        block without a call).

    Returns
    -------
    Block
        The same block for the same model.

    Raises
    ------
    ArgumentTypeError
        If no installed backend knows the object.
    ArgumentError
        If a mapping is empty.
    BackendMismatchError
        If a mapping holds tensors of two frameworks.

    Examples
    --------
    >>> import unigrad
    >>> from unigrad_numpy import nn
    >>> block = unigrad.wrap(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)))
    >>> list(block.parameters)
    ['0.weight', '0.bias', '1.weight']
    """
    if isinstance(model, Block):
        return model
    if isinstance(model, Mapping):
        return _wrap_mapping(model)
    backend = backend_of(model)
    if not backend.block.is_model(model):
        hint = " (a mapping of names to tensors can be wrapped)" if backend.block.is_tensor(model) else ""
        raise ArgumentTypeError(f"wrap takes a model of {backend.spec.name}, not a {type(model).__name__}{hint}")
    return _remember(model, lambda memory: Block(model, backend, memory))


def _wrap_mapping(mapping: Mapping[str, Any]) -> Block:
    if not mapping:
        raise ArgumentError("an empty mapping of tensors can't be wrapped")
    if all(isinstance(value, Block) for value in mapping.values()):
        return _join(mapping)
    first_name, first = next(iter(mapping.items()))
    try:
        backend = backend_of(first)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"the mapping's tensor {first_name!r} is none: {error}") from error
    entries = []
    for name, tensor in mapping.items():
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"names of tensors are non-empty strings, not {name!r}")
        if not backend.block.is_tensor(tensor):
            _refuse_foreign(tensor, backend, f"tensor {name!r}")
        if not backend.block.trainable(tensor):
            raise ArgumentError(
                f"tensor {name!r} is not trainable, or not a leaf; wrap leaf tensors that need a gradient"
            )
        entries.append(Entry(name, name, tensor, "other", name.rpartition(".")[0]))
    structure = Structure(tuple(entries))

    def make(memory: Memory) -> Block:
        block = Block.__new__(MappingBlock)
        block.native = None
        block.backend = backend
        block.memory = memory
        block._inner = None
        block._structure = structure
        block._names = _table(structure)
        return block

    return _remember(dict(mapping), make)


class MappingBlock(Block):
    """A block made of a mapping of names to tensors; it has no call and no modes."""

    def structure(self) -> Structure:
        """Return the structure, which never changes."""
        assert self._structure is not None  # set when the block was made
        return self._structure

    @property
    def training(self) -> bool:
        """Return the chosen mode; False where none was chosen, as there is no native one."""
        return bool(self.memory.training)

    def _set_mode(self, training: bool) -> Block:
        self.memory.training = training
        return self


def _refuse_foreign(obj: Any, backend: Backend, what: str) -> None:
    try:
        other = backend_of(obj)
    except ArgumentTypeError:
        other = backend
    if other.spec.name != backend.spec.name:
        raise BackendMismatchError(
            f"{what} belongs to {other.spec.name}, the block to {backend.spec.name}; one block has one framework"
        )
    raise ArgumentTypeError(f"{what} is a {type(obj).__name__}, not a tensor of {backend.spec.name}")


def join(**blocks: Any) -> Block:
    """Make one block of several; names get the keyword as prefix.

    Parameters
    ----------
    **blocks
        Prefix -> block or native model, all of one backend.

    Returns
    -------
    Block
        A block without a call, whose names are ``prefix.name``.

    Raises
    ------
    ArgumentError
        If there is none.
    BackendMismatchError
        If they belong to different backends.
    """
    if not blocks:
        raise ArgumentError("join needs at least one block")
    return _join(blocks)


def _join(blocks: Mapping[str, Any]) -> Block:
    for prefix in blocks:
        if not isinstance(prefix, str) or not prefix:
            raise ArgumentTypeError(f"prefixes of blocks are non-empty strings, not {prefix!r}")
    inside = [
        (long, short) for long in blocks for short in blocks if long is not short and long.startswith(f"{short}.")
    ]
    if inside:
        raise ArgumentError(f"prefix {inside[0][0]!r} lies inside prefix {inside[0][1]!r}, so names could meet")
    wrapped = {prefix: wrap(block) for prefix, block in blocks.items()}
    backends = {block.backend.spec.name: prefix for prefix, block in wrapped.items()}
    if len(backends) > 1:
        listed = ", ".join(f"{prefix!r} belongs to {name}" for name, prefix in backends.items())
        raise BackendMismatchError(f"blocks of different frameworks can't be joined: {listed}")
    return JoinedBlock(wrapped)


def each_block(blocks: Any, argument: str) -> Iterator[Block]:
    """Yield the blocks of an argument that takes one or several blocks or models."""
    if isinstance(blocks, list | tuple):
        for item in blocks:
            yield wrap(item)
    elif blocks is not None:
        if isinstance(blocks, str | bytes):
            raise ArgumentTypeError(f"{argument} takes blocks or models, not {blocks!r}")
        yield wrap(blocks)

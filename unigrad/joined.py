"""Several blocks as one, and tensors without a model as a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unigrad import names
from unigrad.block import Block, Memory
from unigrad.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from unigrad.protocols import Backend, Entry, Structure
from unigrad.table import table_of

__all__ = ["JoinedBlock", "MappingBlock"]


class JoinedBlock(Block):
    """Several blocks as one, names prefixed; made by :func:`join`."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self._blocks = dict(blocks)
        first = next(iter(self._blocks.values()))
        self.native = None
        self.backend = first.backend
        self.memory = Memory()
        self.inner = None
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
            self._names = table_of(self._structure)
        return self._structure

    def engine(self) -> str:
        """Return the name of the engine that serves all parts; ``ArgumentError`` if they need different ones."""
        engines = {part.engine() for _, part in self.parts()}
        if len(engines) > 1:
            raise ArgumentError(
                f"the joined blocks need different engines ({', '.join(sorted(engines))}); use one collector each"
            )
        return engines.pop()

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

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a joined block has several calls."""
        raise UnsupportedError(
            f"a joined block has no call of its own; call one of its parts: {', '.join(self._blocks)}"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Block:
        raise UnsupportedError("a joined block can't be copied; copy its parts and join the copies")


def _prefixed(entry: Entry, prefix: str) -> Entry:
    layer = prefix + entry.layer if entry.layer else prefix.removesuffix(".")
    return Entry(prefix + entry.name, entry.native_name, entry.tensor, entry.role, layer, entry.owner, entry.key)


class MappingBlock(Block):
    """A block made of a mapping of names to tensors; it has no call and no modes."""

    def __init__(self, structure: Structure, backend: Backend, memory: Memory) -> None:
        self.native = None
        self.backend = backend
        self.memory = memory
        self.inner = None
        self._structure = structure
        self._names = table_of(structure)

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

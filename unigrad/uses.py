"""Which parameters of a block recorded forwards used, and which of them losses reached, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unigrad.block import Block
from unigrad.errors import StaleGraphError
from unigrad.protocols import Graph
from unigrad.table import Table

__all__ = ["Uses"]


class Uses:
    """What a collector knows of its block's parameters since it was entered, or since ``zero()``.

    Parameters
    ----------
    block
        The block.

    Attributes
    ----------
    leaves, name_of
        The block's leaves, and their names by id; those that were replaced since are among them.
    used, reached
        Names used in a recorded forward, and those on which a loss depended.
    outside
        Ids of leaves that a loss depended on and that are not the block's.
    strangers
        Leaves used before they had a name.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.leaves: Sequence[Any] = ()
        self.name_of: Mapping[int, str] = {}
        self.used: set[str] = set()
        self.reached: set[str] = set()
        self.outside: set[int] = set()
        self.strangers: list[Any] = []
        self._table: Table | None = None

    def take(self, leaves: Sequence[Any]) -> None:
        """Take note of leaves used in recorded forwards; called by the recording region."""
        for leaf in leaves:
            name = self.name_of.get(id(leaf))
            if name is not None:
                self.used.add(name)
            elif self.block.waits:
                self.strangers.append(leaf)

    def clear(self) -> None:
        """Begin a new period."""
        self.used = set()
        self.reached = set()
        self.outside = set()

    def resolve(self) -> None:
        """Refresh the names, find those of leaves used before they had one, and register what was used."""
        self.look_up()
        self.register()

    def look_up(self) -> None:
        """Refresh the names."""
        table = self.block.table()
        if table is self._table:
            return
        known, leaves = table.name_of, table.leaves
        # A forward that used a parameter replaced since still gives its gradient.
        past = [leaf for leaf in self.leaves if id(leaf) not in known]
        if past:
            known = {**known, **{id(leaf): self.name_of[id(leaf)] for leaf in past}}
            leaves = (*leaves, *past)
        self._table, self.name_of, self.leaves = table, known, leaves

    def register(self) -> None:
        """Let the block, or its parts, know what was used."""
        for leaf in self.strangers:
            name = self.name_of.get(id(leaf))
            if name is not None:
                self.used.add(name)
        self.strangers.clear()
        for prefix, part in self.block.parts():
            register = part.memory.registered
            if not prefix:
                register |= self.used
                register |= self.reached
                continue
            used = self.used | self.reached
            # A parameter tied between two parts has the name of the first; it is registered in both.
            used.update(alias for alias, name in self.block.aliases.items() if name in used)
            register.update(name.removeprefix(prefix) for name in used if name.startswith(prefix))

    def split(self, graph: Graph, origins: set[int], watched: Mapping[str, Any]) -> tuple[dict[str, Any], set[int]]:
        """Sort the leaves of a graph into own ones by name, and the ids of foreign ones.

        Parameters
        ----------
        graph
            The graph.
        origins
            Ids of tensors that were watched, which are no foreign ones.
        watched
            What stands for them, by name.
        """
        name_of, table, leaves = self.name_of, self._table, graph.leaves
        assert table is not None  # looked up when entering
        if (
            len(leaves) == len(table.leaves)
            and name_of is table.name_of
            and all(map(name_of.__contains__, map(id, leaves)))
        ):
            # All of them and nothing else, as in most steps.
            return dict(zip(name_of.values(), table.leaves, strict=True)), set()
        reached: dict[str, Any] = {}
        outside: set[int] = set()
        for leaf in leaves:
            name = name_of.get(id(leaf))
            if name is not None:
                if name in reached:
                    raise StaleGraphError(
                        f"parameter {name!r} was replaced by another since a forward that this loss depends on; "
                        "run the forward again after the replacement"
                    )
                reached[name] = leaf
            else:
                outside.add(id(leaf))
        if len(reached) > 1:
            reached = {name: reached[name] for name in name_of.values() if name in reached}
        if outside:
            outside -= origins
            outside.difference_update(map(id, watched.values()))
        return reached, outside

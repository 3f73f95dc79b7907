"""Names of one structure, looked up both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from unigrad.protocols import Entry, Structure

__all__ = ["Table", "table_of"]


@dataclass(frozen=True)
class Table:
    """Names of one structure, looked up both ways."""

    parameters: Mapping[str, Any]
    aliases: Mapping[str, str]
    buffers: Mapping[str, Any]
    name_of: Mapping[int, str]
    entries: Mapping[str, Entry]
    leaves: tuple[Any, ...]


def table_of(structure: Structure) -> Table:
    """Return the names of a structure; a parameter met again is a further name of the first."""
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
        tuple(parameters.values()),
    )

"""Nested inputs and outputs: flatten to leaves, rebuild, compare shapes of nesting."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Layout", "flatten", "leaves", "map_leaves", "unflatten"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Shape of a nesting: what container stands where; equal for equal nestings.

    Parameters
    ----------
    kind
        Type of the container, or None for a leaf.
    keys
        Keys, field names or positions of the children.
    children
        Layouts of the children.
    """

    kind: type | None
    keys: tuple[Any, ...] = ()
    children: tuple[Layout, ...] = ()

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield one readable path a leaf, e.g. ``[0]['mask']``."""
        if self.kind is None:
            yield prefix
            return
        for key, child in zip(self.keys, self.children, strict=True):
            yield from child.paths(f"{prefix}[{key!r}]")


LEAF = Layout(None)


def _children(tree: Any) -> tuple[tuple[Any, ...], list[Any]] | None:
    if type(tree) in (list, tuple) or isinstance(tree, list | tuple):
        return tuple(range(len(tree))), list(tree)
    if isinstance(tree, Mapping):
        return tuple(tree), list(tree.values())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(field.name for field in dataclasses.fields(tree))
        return names, [getattr(tree, name) for name in names]
    return None


def flatten(tree: Any) -> tuple[list[Any], Layout]:
    """Return the leaves of a nesting and its layout.

    Lists, tuples, named tuples, mappings and dataclass instances are containers; everything else, None included, is a leaf.

    Parameters
    ----------
    tree
        The nesting. A container that holds itself is an error of Python's (``RecursionError``).

    Returns
    -------
    tuple
        Leaves in order, and the layout from which :func:`unflatten` rebuilds.

    Examples
    --------
    >>> values, layout = flatten({"a": 1, "b": (2, None)})
    >>> values
    [1, 2, None]
    >>> unflatten(layout, [10, 20, None])
    {'a': 10, 'b': (20, None)}
    """
    found: list[Any] = []
    return found, _visit(tree, found)


def _visit(node: Any, found: list[Any]) -> Layout:
    # no closure that calls itself: it would be a reference cycle that holds the leaves until a garbage collection
    parts = _children(node)
    if parts is None:
        found.append(node)
        return LEAF
    keys, values = parts
    return Layout(type(node), keys, tuple([_visit(value, found) for value in values]))


def unflatten(layout: Layout, values: list[Any], like: Any = None) -> Any:
    """Rebuild a nesting from its layout and leaves.

    Parameters
    ----------
    layout
        What :func:`flatten` returned.
    values
        One leaf for each of the layout's.
    like
        The original nesting; needed for mappings and dataclasses that can't be made from their items alone.

    Returns
    -------
    object
        A nesting of the same types.
    """
    return _build(layout, iter(values), like)


def _build(node: Layout, supply: Iterator[Any], original: Any) -> Any:
    if node.kind is None:
        return next(supply)
    parts = _children(original) if original is not None else None
    originals = parts[1] if parts is not None else [None] * len(node.children)
    made = [_build(child, supply, old) for child, old in zip(node.children, originals, strict=True)]
    return _rebuild(node, made, original)


def _rebuild(node: Layout, made: list[Any], original: Any) -> Any:
    kind = node.kind
    assert kind is not None  # a leaf has no children to rebuild
    if kind in (list, tuple):
        return kind(made)
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return kind._make(made)
    if kind is dict:
        return dict(zip(node.keys, made, strict=True))
    if issubclass(kind, list | tuple):
        return kind(made)
    items = dict(zip(node.keys, made, strict=True))
    if issubclass(kind, Mapping) and (original is None or not hasattr(kind, "__setitem__")):
        return kind(items)  # type: ignore[call-arg]  # a mapping takes its items
    if original is None:
        return kind(**items)
    twin = copy.copy(original)
    for key, value in items.items():
        if issubclass(kind, Mapping):
            twin[key] = value
        else:
            object.__setattr__(twin, key, value)  # a frozen dataclass refuses the ordinary way
    return twin


def leaves(tree: Any, keep: Callable[[Any], bool]) -> list[Any]:
    """Return the leaves of a nesting for which ``keep`` is true, in order."""
    return [value for value in flatten(tree)[0] if keep(value)]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the nesting with ``function`` applied to each leaf."""
    values, layout = flatten(tree)
    return unflatten(layout, [function(value) for value in values], tree)

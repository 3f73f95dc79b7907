"""Accumulated gradients by name, and the snapshots that are handed out."""

from __future__ import annotations

import difflib
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

from unigrad.errors import StaleGraphError
from unigrad.protocols import Backend

__all__ = ["Gradients", "Store"]

HALF = ("float16", "bfloat16")


class Gradients(Mapping[str, Any]):
    """Read-only mapping of name to gradient; each is copied when it is first read.

    It is a snapshot: a later backward does not change it, and writing into a gradient does not change the collector.
    """

    __slots__ = ("_convert", "_copies", "_snapshot", "_stored")

    def __init__(
        self,
        stored: Mapping[str, Any],
        snapshot: Callable[[Any], Any],
        convert: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self._stored = stored
        self._snapshot = snapshot
        self._convert = convert
        self._copies: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._copies:
            if name not in self._stored:
                near = difflib.get_close_matches(str(name), list(self._stored), n=1)
                known = (
                    f"did you mean {near[0]!r}?"
                    if near
                    else f"there are gradients of: {', '.join(self._stored) or 'nothing'}"
                )
                raise KeyError(
                    f"no loss depended on {name!r}; {known} (of a watched tensor, the one that watch returned is to be used)"
                )
            self._copies[name] = self._copy(name)
        return self._copies[name]

    def _copy(self, name: str) -> Any:
        value = self._stored[name]
        return self._snapshot(value) if self._convert is None else self._convert(name, value)

    def _all(self) -> dict[str, Any]:
        """Copy what was not read yet, all at once: the views that ``Mapping`` has itself ask for each name in Python."""
        copies, stored = self._copies, self._stored
        if len(copies) < len(stored):
            if copies or self._convert is not None:
                self._copies = {name: copies[name] if name in copies else self._copy(name) for name in stored}
            else:
                self._copies = dict(zip(stored, map(self._snapshot, stored.values()), strict=True))
        return self._copies

    def values(self) -> ValuesView[Any]:
        """Return the gradients."""
        return self._all().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the names with the gradients."""
        return self._all().items()

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __repr__(self) -> str:
        return f"<gradients of {', '.join(self._stored) or 'nothing'}>"


class Store:
    """Accumulated gradients by name; every update makes a new mapping, so that handed-out ones stand."""

    __slots__ = ("backend", "connected", "halves", "values")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.values: dict[str, Any] = {}
        self.halves: dict[str, str] = {}
        self.connected = False

    def require_shapes(self, parameters: Mapping[str, Any]) -> None:
        """Raise ``StaleGraphError`` for a parameter that is of another shape than the gradient it is to be added to."""
        shape, values = self.backend.arrays.shape, self.values
        for name, tensor in parameters.items():
            if name in values and shape(values[name]) != shape(tensor):
                raise StaleGraphError(
                    f"parameter {name!r} was replaced by one of shape {shape(tensor)}, and its gradient so far has shape "
                    f"{shape(values[name])}, so there is no sum of them; call zero() first, or enter a new collector"
                )

    def add(self, new: Mapping[str, Any], weight: float | None) -> dict[str, Any]:
        """Return the sums with ``new`` (times ``weight``) added; half precision is added in float32."""
        arrays = self.backend.arrays
        out = dict(self.values)
        halves = dict(self.halves)
        for name, value in new.items():
            old = out.get(name)
            halves.pop(name, None)
            if old is None and weight is None:
                out[name] = value
                continue
            dtype = arrays.dtype(value)
            if dtype in HALF:
                halves[name] = dtype
                dtype = "float32"
                value = arrays.cast(value, dtype)
            if weight is not None:
                value = arrays.scale(value, weight)
            # The model may have been converted since: the sum has the dtype that the parameter has now.
            out[name] = value if old is None else arrays.add(arrays.cast(old, dtype), value)
        self.halves = halves
        return out

    def view(self, divisor: float | None) -> Gradients:
        """Return the mapping to hand out, divided by the total weight if there is one."""
        arrays = self.backend.arrays
        snapshot, halves = arrays.snapshot, self.halves
        if divisor is None and not self.connected and not halves:
            return Gradients(self.values, snapshot)
        factor = 1.0 if divisor is None else 1.0 / divisor
        plain = divisor is None and not self.connected

        def convert(name: str, stored: Any) -> Any:
            value = snapshot(stored) if plain else arrays.scale(stored, factor)
            return arrays.cast(value, halves[name]) if name in halves else value

        return Gradients(self.values, snapshot, convert)

"""Bytes held for backward. See ``unigrad.protocols.MemoryModule``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unigrad_numpy.graph import base_of, log_storages

__all__ = ["measure"]


class Meter:
    """Result of :func:`measure`."""

    bytes: int = 0


@contextmanager
def measure(held: Sequence[Any]) -> Iterator[Meter]:
    """Count the bytes of distinct arrays made by operations inside the ``with`` and still alive when it ends."""
    meter = Meter()
    not_counted = {id(base_of(tensor._array)) for tensor in held}
    with log_storages() as log:
        yield meter
    alive = {id(array): array.nbytes for array in (reference() for reference in log) if array is not None}
    meter.bytes = sum(size for key, size in alive.items() if key not in not_counted)

"""``memory``: bytes held for backward."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

__all__ = ["MemoryModule", "Meter"]


class Meter(Protocol):
    """Result of a measurement of kept bytes."""

    @property
    def bytes(self) -> int:
        """Bytes held for backward when the measured part ended."""


class MemoryModule(Protocol):
    """``memory``: bytes held for backward."""

    def measure(self, held: Sequence[Any]) -> AbstractContextManager[Meter]:
        """Count the bytes of distinct storages made inside the ``with`` and still alive, for whatever reason, when it ends.

        ``held`` (parameters, buffers) is not counted, nor is anything that existed before. Raises ``UnsupportedError`` where it
        cannot count.
        """

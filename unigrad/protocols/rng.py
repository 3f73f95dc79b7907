"""``rng``: the framework's global random state and generators."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["RngModule"]


class RngModule(Protocol):
    """``rng``: the framework's global random state and generators."""

    def seed(self, seed: int) -> None:
        """Seed the framework's global random state."""

    def snapshot(self) -> Any:
        """Return the framework's global random state, cheap enough to take once per checkpoint."""

    def restore(self, state: Any) -> None:
        """Set the framework's global random state."""

    def is_generator(self, obj: object) -> bool:
        """Whether ``obj`` is a native random generator."""

    def generator_state(self, generator: Any) -> Any:
        """Return the state of a native generator."""

    def set_generator_state(self, generator: Any, state: Any) -> None:
        """Set the state of a native generator."""

    def to_portable(self, state: Any) -> Any:
        """Return a snapshot as a 1-D uint8 NumPy array, for saving."""

    def from_portable(self, array: Any) -> Any:
        """Return the snapshot of which ``to_portable`` made the array."""

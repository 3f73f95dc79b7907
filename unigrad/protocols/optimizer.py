"""``optimizer``: apply gradients; state only for what is registered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["OptimizerModule"]


class OptimizerModule(Protocol):
    """``optimizer``: apply gradients; state only for what is registered."""

    def is_optimizer(self, obj: object) -> bool:
        """Whether ``obj`` is a native optimizer."""

    def create(self, factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
        """Return the native optimizer that ``factory`` makes for the given native parameters."""

    def extend(self, optimizer: Any, parameters: Mapping[str, Any]) -> None:
        """Make the native optimizer serve more parameters, with the settings of its factory."""

    def served(self, optimizer: Any) -> Collection[Any]:
        """Return the native parameters that the optimizer serves, as ``create`` and ``extend`` were given them."""

    def step(self, optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
        """Do one native step with ``(parameter, gradient)`` pairs; a parameter with None does not move.

        The framework's own gradient slots (``.grad``) are afterwards as they were.
        """

    def state_of(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """Return the state that the optimizer holds for one parameter, tensors and scalars by name; empty if none.

        For None as parameter: what belongs to no single one and changes from step to step, e.g. rates that a schedule sets.
        """

    def set_state_of(self, optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
        """Put back what ``state_of`` returned (tensors and scalars may come as NumPy arrays); never called with nothing to put."""

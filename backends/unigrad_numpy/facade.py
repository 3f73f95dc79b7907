"""A module that is another one in everything but its forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from unigrad_numpy.nn import Module

__all__ = ["facade"]


class Facade:
    """Put before the class of a module: its attributes are those of the plain module, the very same dictionary."""

    __slots__ = ("enabled", "plain", "run")

    enabled: bool
    plain: Module
    run: Callable[..., Any]

    # A property is found before the shared dictionary, where an assigned forward of the plain module stands.
    @property
    def forward(self) -> Callable[..., Any]:
        """The plain forward, through ``run``."""
        return self._run_forward if self.enabled else self.plain.forward

    def _run_forward(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.run(self.plain.forward, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "enabled":
            object.__setattr__(self, name, value)
        else:
            setattr(self.plain, name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = facade(copy.deepcopy(self.plain, memo), self.run)
        twin.enabled = self.enabled
        memo[id(self)] = twin
        return twin


def facade(model: Module, run: Callable[..., Any]) -> Any:
    """Return a module with the forward ``run(forward, *args, **kwargs)`` and all else of ``model``, shared."""
    inner = model
    while isinstance(inner, Facade):  # a facade of a facade is of the plain class too
        inner = inner.plain
    kind = type(inner)
    made: Any = object.__new__(
        type(kind.__name__, (Facade, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    )
    for name, value in (("__dict__", vars(model)), ("plain", model), ("run", run), ("enabled", True)):
        object.__setattr__(made, name, value)
    return made

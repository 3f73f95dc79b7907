"""A module that is another one in everything but its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unigrad.facade import Facade, make, run_forward


class _Facade(Facade):
    __slots__ = ()

    @property
    def forward(self) -> Callable[..., Any]:
        # A property is found before the shared dictionary, where an assigned forward of the plain module stands.
        return self.__unigrad_forward__

    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        return run_forward(self, self.__unigrad_plain__.forward, args, kwargs)


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a module with the forward ``run(forward, *args, **kwargs)`` and all else of ``model``, shared."""
    return make(_Facade, model, run)

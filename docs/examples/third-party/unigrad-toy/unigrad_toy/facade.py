"""A module that differs from another in its forward alone. See ``unigrad.protocols.BlockModule.facade``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unigrad.facade import Facade, make, run_forward


class _Facade(Facade):
    __slots__ = ()

    @property
    def forward(self) -> Callable[..., Any]:
        # A property is found before the dictionary, where somebody may have put another forward of the plain module.
        return self.__unigrad_forward__

    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        return run_forward(self, self.__unigrad_plain__.forward, args, kwargs)


def facade(model: Any, run: Callable[..., Any]) -> Any:
    return make(_Facade, model, run)

"""A layer that is another one in everything but its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unigrad.facade import Facade, make, run_forward


class _Facade(Facade):
    __slots__ = ()

    @property
    def forward(self) -> Callable[..., Any]:
        # a property is found before ``__dict__``, where to_static puts another forward
        return self.__unigrad_forward__

    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        return run_forward(self, self.__unigrad_plain__.forward, args, kwargs)


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a layer that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    return make(_Facade, model, run)

"""A Cell that is another one in everything but its forward."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from unigrad.errors import UnsupportedError
from unigrad.facade import Facade, make, run_forward
from unigrad_mindspore.pynative import make_cell

_PARSER = "mindspore.graph._parse"
"""Package that asks for a construct to compile it."""


class _Facade(Facade):
    __slots__ = ()

    @classmethod
    def __unigrad_new__(cls) -> Any:
        return make_cell(cls)

    @property
    def construct(self) -> Callable[..., Any]:
        # A property is found before the shared dictionary, where an assigned construct of the plain Cell stands.
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_PARSER):
            if not self.enabled:
                return self.__unigrad_plain__.construct
            raise UnsupportedError(
                "a checkpointed or microbatched Cell works in PYNATIVE_MODE only: GRAPH_MODE and mindspore.jit read its code in place of "
                "running it, and would not recompute. Set its enabled = False there, or call "
                "mindspore.set_context(mode=mindspore.PYNATIVE_MODE)"
            )
        return self.__unigrad_forward__

    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        return run_forward(self, self.__unigrad_plain__.construct, args, kwargs)

    def __del__(self) -> None:
        """Do nothing: a Cell deletes what was compiled for it, which here is the plain Cell's."""


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a Cell that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    return make(_Facade, model, run)

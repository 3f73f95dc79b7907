"""A layer that is another one in everything but its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle.jit.dy2static.program_translator import StaticFunction

from unigrad.facade import ForwardFacade
from unigrad_paddle.compiled import refuse, refuse_compiled

__all__ = ["LayerFacade"]

_WHAT = "a checkpoint, or a microbatch,"


class LayerFacade(ForwardFacade):
    """Of a layer; switched off, it is the plain one for Paddle's compiler too."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a plain layer: paddle.nn.TransformerEncoder makes further layers by calling the class of the one it is given."""
        return cls.__bases__[-1](*args, **kwargs)

    @property
    def forward(self) -> Callable[..., Any]:
        """The plain forward, run; the plain one itself where this is switched off."""
        forward: Callable[..., Any] = self.__unigrad_forward__ if self.enabled else self.__unigrad_plain__.forward
        return forward

    @forward.setter
    def forward(self, function: Callable[..., Any]) -> None:
        # by ``object.__setattr__`` of Paddle's compiler; ``__setattr__`` goes past this
        if self.enabled:
            refuse(_WHAT)
        object.__setattr__(self.__unigrad_plain__, "forward", function)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "forward" and self.enabled and isinstance(value, StaticFunction):
            refuse(_WHAT)
        super().__setattr__(name, value)

    @paddle.jit.not_to_static
    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        refuse_compiled(_WHAT)
        return super().__unigrad_forward__(*args, **kwargs)

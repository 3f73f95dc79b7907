"""A module that is another one in everything but its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from unigrad.errors import UnsupportedError
from unigrad.facade import SLOTS, Facade, ForwardFacade, class_of, make
from unigrad.tracing import called_not_read
from unigrad_torch.compiled import keep_out, refuse_compiled


@called_not_read
def _refuse(facade: Any) -> None:
    """Refuse in a compiler, which could not read the slots of a facade."""
    keep_out()
    if facade.enabled and torch.is_grad_enabled():
        refuse_compiled(getattr(facade.__unigrad_run__, "what", "a checkpoint"))


class _Facade(ForwardFacade):
    # of a base that all have in common, since an object changes its class only where both keep their slots in one place
    __slots__ = SLOTS

    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        _refuse(self)
        return super().__unigrad_forward__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__class__":
            super().__setattr__(name, value)
        elif issubclass(value, Facade):  # fully_shard puts a class of its own before this one
            object.__setattr__(self, name, value)
        else:  # a lazy layer becomes the ordinary one
            self.__unigrad_plain__.__class__ = value
            object.__setattr__(self, name, class_of(_Facade, value))


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a module that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            "a script module cannot be given another forward; "
            "pass the module it was made from, or a function that calls it: unigrad.checkpoint(function, blocks=[module])"
        )
    return make(_Facade, model, run)

"""Hooks of gradients that return what is no tensor: Paddle 3.3.1 takes it for one unseen, which ends the process.

Hooks are looked at when they are registered, since a tensor tells nobody of its hooks; the function for it is exchanged when this is
loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from unigrad.errors import ArgumentTypeError
from unigrad_paddle.faults import kept, running
from unigrad_paddle.framework import Tensor

__all__ = ["register"]

register: Any = Tensor._register_grad_hook
"""Registers a hook as it is; also one of the library's own, which may return another shape than the gradient has."""


def _register(self: Any, hook: Callable[[Any], Any]) -> Any:
    if not callable(hook):
        raise ArgumentTypeError(f"a hook is a function of the gradient, not {hook!r}")

    def checked(gradient: Any) -> Any:
        with kept():
            result = hook(gradient)
            if result is None:
                return None
            if not isinstance(result, Tensor):
                raise ArgumentTypeError(
                    f"a hook of a gradient returned {result!r}; it returns a tensor in place of the gradient, or None"
                )
            if running() and (result.shape != gradient.shape or not result._is_initialized()):
                raise ArgumentTypeError(
                    f"a hook returned a tensor of shape {tuple(result.shape)} in place of a gradient of shape {tuple(gradient.shape)}"
                )
            return result

    return register(self, checked)


Tensor._register_grad_hook = _register

"""Hooks of gradients: what they return is looked at, and those of a leaf wait for the gradient of the whole.

Paddle 3.3.1 takes what a hook returns for a tensor, unseen, which ends the process if it is none. And a recompute that runs down to a
parameter itself would call the hooks of this with a part of its gradient. A tensor tells nobody of its hooks, so they are looked at when
they are registered; the functions for it are exchanged when this is loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from unigrad.errors import ArgumentTypeError
from unigrad_paddle.faults import kept, running
from unigrad_paddle.framework import Tensor, is_initialized, node_of

__all__ = ["hooks_held", "hooks_of_forward", "register"]

register: Any = Tensor._register_grad_hook
"""Registers a hook as it is; also one of the library's own, which may return another shape than the gradient has."""
_register_after: Any = Tensor._register_backward_hook


class _Local(threading.local):
    def __init__(self) -> None:
        self.held: frozenset[int] = frozenset()
        self.served: frozenset[Any] = frozenset()


_local = _Local()
_NO_HOOK = -1


@contextmanager
def hooks_held(leaves: Iterable[Any]) -> Iterator[None]:
    """Call no hook of these leaves in this thread: what is computed is a part of their gradients."""
    before = _local.held
    _local.held = before.union(map(id, leaves))
    try:
        yield
    finally:
        _local.held = before


@contextmanager
def hooks_of_forward(tensors: Iterable[Any]) -> Iterator[None]:
    """Register no hook of these tensors in this thread: in a recompute they stand for what the forward gave the same hooks."""
    before = _local.served
    _local.served = before.union(map(node_of, tensors))
    try:
        yield
    finally:
        _local.served = before


def _is_served(tensor: Any) -> bool:
    return bool(_local.served) and not tensor.stop_gradient and node_of(tensor) in _local.served


def _register_grad_hook(self: Any, hook: Callable[[Any], Any]) -> Any:
    if not callable(hook):
        raise ArgumentTypeError(f"a hook is a function of the gradient, not {hook!r}")
    if _is_served(self):
        return _NO_HOOK
    key = id(self)

    def checked(gradient: Any) -> Any:
        if key in _local.held:
            return None
        with kept():
            result = hook(gradient)
            if result is None:
                return None
            if not isinstance(result, Tensor):
                raise ArgumentTypeError(
                    f"a hook of a gradient returned {result!r}; it returns a tensor in place of the gradient, or None"
                )
            if running() and (result.shape != gradient.shape or not is_initialized(result)):
                raise ArgumentTypeError(
                    f"a hook returned a tensor of shape {tuple(result.shape)} in place of a gradient of shape {tuple(gradient.shape)}"
                )
            return result

    return register(self, checked)


def _register_backward_hook(self: Any, hook: Callable[[], Any]) -> Any:
    if _is_served(self):
        return _NO_HOOK
    key = id(self)

    def told() -> Any:
        return None if key in _local.held else hook()

    return _register_after(self, told)


Tensor._register_grad_hook = _register_grad_hook
Tensor._register_backward_hook = _register_backward_hook

"""Tell which leaf tensors take part in recorded operations of a thread.

Paddle tells nobody of an operation. So the operations, and those methods of a tensor that compute without them, are
exchanged for ones that look at their arguments, while a region waits for the use of some leaf. Layer hooks would be wrong in both
directions: they miss functional use and report layers whose parameters no operation took.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import paddle

from unigrad.errors import UnsupportedError
from unigrad_paddle.arrays import half, is_half
from unigrad_paddle.framework import Tensor, exchange_operations, operations, wrap_methods
from unigrad_paddle.leaves import know, unknown
from unigrad_paddle.stand_ins import any_stand_in, original, stands_in

__all__ = ["Region", "current", "unnoticed"]


_NESTED = frozenset({list, tuple})


class _Local(threading.local):
    region: Region | None = None


_local = _Local()
_lock = threading.Lock()
_installed = 0


class Region:
    """A thread's region: the leaves that it waits for, and those used since they were last asked for."""

    def __init__(self) -> None:
        self._waiting: dict[int, Any] = {}
        self._told: list[Any] = []
        self._others = False
        self._watching = False
        self._kept: dict[int, Any] = {}
        _local.region = self

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Take note of the next use of each of these leaves, and of every trainable leaf if ``others``."""
        for leaf in unknown(leaves):
            if is_half(leaf):
                raise UnsupportedError(half(leaf))
        know(leaves)
        self._others = self._others or others
        self._waiting.update((id(leaf), leaf) for leaf in leaves)
        self._watch()

    def _watch(self) -> None:
        if (self._waiting or self._others) and not self._watching:
            self._watching = True
            _install()

    def pause(self) -> tuple[dict[int, Any], bool]:
        """Wait for nothing from now on; return what ``resume`` is to be given."""
        waiting, others = self._waiting, self._others
        self._waiting, self._others = {}, False
        return waiting, others

    def resume(self, waiting: dict[int, Any], others: bool) -> None:
        """Wait again for what was waited for, and for what has been asked for meanwhile."""
        self._waiting.update(waiting)
        self._others = self._others or others
        self._watch()

    def see(self, values: Any) -> None:
        """Look for leaves among the arguments of an operation."""
        waiting = self._waiting
        for value in values:
            if id(value) in waiting:
                if not value.stop_gradient and paddle.is_grad_enabled():
                    self._told.append(value)
                    del waiting[id(value)]
                    if not waiting and not self._others:
                        self._stop()
            elif type(value) in _NESTED:
                self.see(value)
            elif any_stand_in() and stands_in(value):
                self.see([original(value)])
            elif self._others and _takes_gradient(value) and paddle.is_grad_enabled():
                self._told.append(value)

    def keep(self, node: Any) -> Any:
        """Hold the node of a leaf that nobody knows, so that it stays one object while the region is open."""
        return self._kept.setdefault(id(node), node)

    def used(self) -> list[Any]:
        """Return the leaves used since the last call."""
        told, self._told = self._told, []
        return told

    def _stop(self) -> None:
        if self._watching:
            self._watching = False
            _uninstall()

    def close(self) -> None:
        """Stop."""
        self._stop()
        _local.region = None


def current() -> Region | None:
    """Return the region of this thread."""
    return _local.region


def _takes_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.stop_gradient and value.is_leaf


@contextmanager
def unnoticed() -> Iterator[None]:
    """Let this thread use leaves without a note: a recompute is no use of what its forward used.

    A collector opened meanwhile is told of the uses that it waits for.
    """
    region = _local.region
    if region is None:
        yield
        return
    waiting, others = region.pause()
    try:
        yield
    finally:
        region.resume(waiting, others)


def _watching(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        region = _local.region
        if region is not None:
            region.see(args)
            if kwargs:
                region.see(kwargs.values())
        return function(*args, **kwargs)

    return watched


_watched_operations = {name: _watching(function) for name, function in operations().items()}
_plain_methods, _watched_methods = wrap_methods(_watching)


def _install() -> None:
    global _installed
    with _lock:
        _installed += 1
        if _installed == 1:
            _exchange(_watched_operations, _watched_methods)


def _uninstall() -> None:
    global _installed
    with _lock:
        _installed -= 1
        if not _installed:
            _exchange(None, _plain_methods)


def _exchange(operations: dict[str, Any] | None, methods: dict[str, Any]) -> None:
    exchange_operations(operations)
    for name, method in methods.items():
        setattr(Tensor, name, method)

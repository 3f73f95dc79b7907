"""What recomputes in a backward, and is to be dropped at its end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from unigrad_mindspore.pynative import at_end_of_backward

__all__ = ["backward_pass", "clear_at_end", "keeps", "may_recompute"]

_alive: WeakSet[Any] = WeakSet()


class Clearable(Protocol):
    """Something that keeps values for one backward."""

    def clear(self) -> None:
        """Drop them."""


class _Local(threading.local):
    def __init__(self) -> None:
        self.passes: list[list[Any]] = []


_local = _Local()


@contextmanager
def backward_pass() -> Iterator[None]:
    """Surround a backward; afterwards what was kept for it is dropped."""
    _local.passes.append([])
    try:
        yield
    finally:
        for kept in _local.passes.pop():
            kept.clear()


def clear_at_end(kept: Clearable) -> None:
    """Have values dropped when the innermost backward of this thread ends, also one of MindSpore's own."""
    if _local.passes:
        _local.passes[-1].append(kept)
    else:
        alive = weakref.ref(
            kept
        )  # weakly: the callback lives to the end of the backward, and a region's inputs need not
        at_end_of_backward(lambda: _clear(alive))


def _clear(alive: Callable[[], Any]) -> None:
    kept = alive()
    if kept is not None:
        kept.clear()


def keeps(kept: Clearable) -> None:
    """Take note of something that recomputes for as long as it lives."""
    _alive.add(kept)


def may_recompute() -> bool:
    """Whether a backward may run a function of the user's, which may fail half-way."""
    return len(_alive) > 0

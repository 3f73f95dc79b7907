"""Whether a region runs in this thread for the first time, and what is watched inside of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["collects_inside", "in_forward", "inside", "rerunning", "running", "watched_inside"]


class _State(threading.local):
    forward: bool | None = None
    watched: list[Any] | None = None
    collects: bool = False


_state = _State()


def in_forward() -> bool | None:
    """Whether the first run of a region is on, in which recording is stopped for its own sake; None if none is."""
    return _state.forward


@contextmanager
def running(stopped: bool) -> Iterator[Callable[[], bool]]:
    """Mark the first run of a region, and whether it has stopped all recording; gives whether a collector was opened inside."""
    before, _state.forward, _state.collects = _state.forward, stopped, False
    try:
        yield lambda: _state.collects
    finally:
        _state.forward = before


def collects_inside() -> None:
    """Take note that a collector is opened, if a region runs."""
    _state.collects = True


@contextmanager
def rerunning() -> Iterator[None]:
    """Mark a recompute, which is no first run even where it is asked for in one."""
    before, _state.forward = _state.forward, None
    try:
        yield
    finally:
        _state.forward = before


@contextmanager
def inside() -> Iterator[list[Any]]:
    """Collect the tensors that are watched while a region runs."""
    before, _state.watched = _state.watched, []
    try:
        yield _state.watched
    finally:
        _state.watched = before


def watched_inside(twin: Any) -> None:
    """Take note of a tensor that was watched, if a region runs."""
    if _state.watched is not None:
        _state.watched.append(twin)

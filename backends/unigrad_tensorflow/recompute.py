"""Whether a checkpoint is being recomputed in this thread, and what is watched inside of a region."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["in_recompute", "inside", "recomputing", "watched_inside"]


class _State(threading.local):
    depth = 0
    watched: list[Any] | None = None


_state = _State()


def in_recompute() -> bool:
    """Whether a checkpoint is being recomputed in this thread now."""
    return _state.depth > 0


@contextmanager
def recomputing() -> Iterator[None]:
    """Mark a recompute."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


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

"""Whether this thread is in the forward or the recompute of a checkpointed region."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    depth = 0
    forwards = 0


_state = _State()


def in_recompute() -> bool:
    """Whether a checkpoint is being recomputed in this thread now."""
    return _state.depth > 0


@contextmanager
def recomputing() -> Iterator[None]:
    """Mark the thread as recomputing."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


def in_region() -> bool:
    """Whether the forward of a checkpointed region is running in this thread now."""
    return _state.forwards > 0


@contextmanager
def inside_region() -> Iterator[None]:
    """Mark the thread as in the forward of a region."""
    _state.forwards += 1
    try:
        yield
    finally:
        _state.forwards -= 1

"""Whether this thread recomputes a checkpoint now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["in_recompute", "recomputing"]


class _State(threading.local):
    depth = 0


_state = _State()


def in_recompute() -> bool:
    """Whether a checkpoint, of whatever backend, is being recomputed in this thread now."""
    return _state.depth > 0


@contextmanager
def recomputing() -> Iterator[None]:
    """Mark the thread as recomputing."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1

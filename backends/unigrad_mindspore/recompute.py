"""Whether a checkpoint is being recomputed in this thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    depth = 0


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

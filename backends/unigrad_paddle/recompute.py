"""Whether this thread is in the forward of a checkpointed region."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import paddle


class _State(threading.local):
    forwards = 0


_state = _State()


def in_region() -> bool:
    """Whether the forward of a checkpointed region is running in this thread now."""
    return _state.forwards > 0


@contextmanager
def inside_region() -> Iterator[None]:
    """Mark the thread as in the forward of a region."""
    _state.forwards += 1
    recording = paddle.is_grad_enabled()
    try:
        yield
    except BaseException:
        paddle.set_grad_enabled(recording)  # a hook of saved tensors that raises leaves it off
        raise
    finally:
        _state.forwards -= 1

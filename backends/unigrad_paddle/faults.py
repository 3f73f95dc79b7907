"""What Paddle's errors in a backward mean, and the errors that are raised inside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import paddle

from unigrad.errors import GraphReleasedError, StaleGraphError

_RELEASED = "TensorWrappers of"
_CHANGED = "has been modified by an inplace operation"


class _Raised(threading.local):
    error: BaseException | None = None


_raised = _Raised()


@contextmanager
def kept() -> Iterator[None]:
    """Remember what is raised inside a hook: Paddle hands on its text only."""
    try:
        yield
    except BaseException as error:
        if _raised.error is None:
            _raised.error = error
        raise


@contextmanager
def explained() -> Iterator[None]:
    """Surround a backward: raise what a hook raised, or the error of unigrad that Paddle's stands for; modes are afterwards as before."""
    before, _raised.error = _raised.error, None
    recording = paddle.is_grad_enabled()
    try:
        yield
    except (SystemError, RuntimeError, OSError, ValueError) as error:
        inner, _raised.error = _raised.error, None
        if inner is not None:
            raise inner from error
        text = str(error)
        if _RELEASED in text:
            raise GraphReleasedError(
                "a part of this graph was released by an earlier backward; pass retain_graph=True to that one"
            ) from error
        if _CHANGED in text:
            raise StaleGraphError(
                f"a value that the graph needs was changed in place after the forward; run the forward again after the change: {text}"
            ) from error
        raise
    finally:
        _raised.error = before
        paddle.set_grad_enabled(recording)

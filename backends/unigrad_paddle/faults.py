"""What Paddle's errors in a backward mean, and the errors that are raised inside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import paddle

from unigrad.errors import GraphReleasedError, StaleGraphError, UnsupportedError

_RELEASED = "TensorWrappers of"
_CHANGED = "has been modified by an inplace operation"
_EMPTY = "Required tensor shall not be nullptr"
_COMPILED = ("Tensor holds no memory", "Tensor not initialized yet")


class _Raised(threading.local):
    error: BaseException | None = None
    name = ""
    depth = 0


_raised = _Raised()


@contextmanager
def kept(own: bool = False) -> Iterator[None]:
    """Remember what is raised inside a hook: Paddle hands on its text only.

    Parameters
    ----------
    own
        Whether it is a hook of this library's: what it raises is also to arrive in a backward of Paddle's own, where others are left to
        Paddle.
    """
    try:
        yield
    except BaseException as error:
        if running() or own:
            _raised.error, _raised.name = _meant(error), type(error).__name__
        raise


@contextmanager
def explained() -> Iterator[None]:
    """Surround a backward: raise what a hook raised, or the error of unigrad that Paddle's stands for; modes are afterwards as before."""
    _raised.error = None
    _raised.depth += 1
    recording = paddle.is_grad_enabled()
    try:
        yield
    except BaseException as error:
        meant = _meant(error)
        # Inside another backward this leaves a hook of that one.
        _raised.error, _raised.name = (meant if _raised.depth > 1 else None), type(meant).__name__
        if meant is error:
            raise
        raise meant from error
    finally:
        _raised.depth -= 1
        paddle.set_grad_enabled(recording)


def forget() -> None:
    """Forget what was raised in a hook, before a backward of Paddle's own."""
    if not running():
        _raised.error = None


def raised_inside(error: BaseException) -> BaseException:
    """Return what a hook of this library's raised in a backward of Paddle's own, if that is what an error of Paddle's stands for."""
    inner = _raised.error
    if running() or inner is None or not isinstance(error, OSError) or _raised.name not in str(error):
        return error
    _raised.error = None
    return inner


def running() -> bool:
    """Whether a backward of ours is running in this thread."""
    return _raised.depth > 0


def _meant(error: BaseException) -> BaseException:
    text = str(error)
    inner = _raised.error
    if inner is not None and isinstance(error, OSError) and _raised.name in text:
        return inner
    if isinstance(error, SystemError) and error.__cause__ is not None:
        return error.__cause__  # of a hook after accumulation
    if _RELEASED in text and isinstance(error, SystemError):
        return GraphReleasedError(
            "a part of this graph was released by an earlier backward; pass retain_graph=True to that one"
        )
    if _CHANGED in text and isinstance(error, RuntimeError):
        return StaleGraphError(
            f"a value that the graph needs was changed in place after the forward; run the forward again after the change: {text}"
        )
    if isinstance(error, RuntimeError) and any(words in text for words in _COMPILED):
        return GraphReleasedError(
            "a program of paddle.jit.to_static in this graph has run backward already, which it can once only; run the forward again. Or "
            "an LSTM, GRU or SimpleRNN ran in eval mode, which Paddle can't run backward; train() it, with dropout=0"
        )
    if _EMPTY in text and isinstance(error, ValueError):
        return UnsupportedError(
            "Paddle's kernels can't run backward through a layer that was given an empty batch; leave it out (a backward with weight=0 "
            "computes nothing)"
        )
    return error

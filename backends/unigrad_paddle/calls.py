"""Notice which layers a thread calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paddle import nn

_lock = threading.Lock()
_plain: Any = nn.Layer.__call__
_open = 0


class _Local(threading.local):
    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []


_local = _Local()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    for callback in list(_local.callbacks):
        callback(self)
    return _plain(self, *args, **kwargs)


@contextmanager
def watched(callback: Callable[[Any], None]) -> Iterator[None]:
    """Call ``callback(layer)`` before each layer that this thread calls inside the ``with``.

    Paddle has no hook on all layers, so that the call of the base class is exchanged meanwhile.
    """
    global _open
    with _lock:
        _open += 1
        if _open == 1:
            nn.Layer.__call__ = _call
    _local.callbacks.append(callback)
    try:
        yield
    finally:
        _local.callbacks.remove(callback)
        with _lock:
            _open -= 1
            if not _open:
                nn.Layer.__call__ = _plain

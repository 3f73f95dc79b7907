"""One counted recording region per thread and backend, shared by all open collectors."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from unigrad.errors import UnsupportedError
from unigrad.protocols import Backend, Guarantee, RecordingRegion

__all__ = ["Listener", "close", "forget", "open_for"]


class Listener(Protocol):
    """A collector, as the region sees it."""

    def used(self, leaf: Any) -> bool:
        """Take note of a leaf used in a recorded forward; whether the collector knows it."""


class _Shared:
    """The region of one backend in one thread, with the collectors that it tells."""

    def __init__(self, backend: Backend) -> None:
        self.listeners: list[Listener] = []
        self.region: RecordingRegion = backend.tape.open_region(self.observe)

    def observe(self, leaf: Any) -> bool:
        known = False
        for listener in self.listeners:
            known = listener.used(leaf) or known
        return known


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.shared: dict[str, _Shared] = {}


_local = _PerThread()
_lock = threading.Lock()
_open_threads: dict[str, dict[int, int]] = {}


def open_for(backend: Backend, listener: Listener) -> None:
    """Open the thread's region, or join it; undo with :func:`close`.

    Raises
    ------
    UnsupportedError
        If the backend does not declare threads and another thread has an open collector.
    """
    name = backend.spec.name
    me = threading.get_ident()
    with _lock:
        threads = _open_threads.setdefault(name, {})
        if backend.spec.guarantees.get(Guarantee.THREADS) != "kept" and any(other != me for other in threads):
            raise UnsupportedError(
                f"backend {name!r} does not support collectors in several threads; close the collector of the other thread first"
            )
        threads[me] = threads.get(me, 0) + 1
    try:
        shared = _local.shared.get(name)
        if shared is None:
            shared = _local.shared[name] = _Shared(backend)
        else:
            shared.region.forget()
    except BaseException:
        _count_down(name, me)
        raise
    shared.listeners.append(listener)


def close(backend: Backend, listener: Listener) -> None:
    """Leave the thread's region; the last one closes it."""
    name = backend.spec.name
    shared = _local.shared[name]
    shared.listeners.remove(listener)
    try:
        if not shared.listeners:
            del _local.shared[name]
            backend.tape.close_region(shared.region)
    finally:
        _count_down(name, threading.get_ident())


def forget(backend: Backend) -> None:
    """Have every leaf told again at its next use in this thread."""
    _local.shared[backend.spec.name].region.forget()


def _count_down(name: str, thread: int) -> None:
    with _lock:
        threads = _open_threads[name]
        threads[thread] -= 1
        if not threads[thread]:
            del threads[thread]

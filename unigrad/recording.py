"""One recording region per thread and backend, shared by all open collectors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from unigrad.errors import UnsupportedError
from unigrad.protocols import Backend, Guarantee, RecordingRegion

__all__ = ["Listener", "SharedRegion", "join", "listens"]


class Listener(Protocol):
    """A collector, as the region sees it."""

    block: Any

    def take(self, leaves: Sequence[Any]) -> None:
        """Take note of leaves used in recorded forwards."""


class SharedRegion:
    """The region of one backend in one thread, with the collectors that it tells.

    Uses are handed to the collectors when one of them asks, enters or begins a new period, so that each hears of those of
    its own time.
    """

    __slots__ = ("_backend", "_listeners", "_region", "_several")

    def __init__(self, backend: Backend, listener: Listener, several: bool) -> None:
        self._backend = backend
        self._several = several  # whether other threads may have a region too
        self._listeners: list[Listener] = [listener]
        self._region: RecordingRegion = backend.tape.open_region()

    def deliver(self) -> None:
        """Tell all listeners of the uses since the last delivery."""
        leaves = self._region.used()
        if leaves:
            for listener in self._listeners:
                listener.take(leaves)

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Have these leaves noted at their next use, and others too if asked."""
        self._region.expect(leaves, others)

    def leave(self, listener: Listener, deliver: bool) -> None:
        """Take leave; the last one closes the region.

        Parameters
        ----------
        listener
            Who leaves.
        deliver
            Whether it wants to hear of the latest uses.
        """
        listeners = self._listeners
        if deliver or len(listeners) > 1:
            self.deliver()
        listeners.remove(listener)
        if not listeners:
            _local.shared.pop(self._backend.spec.name, None)
            try:
                self._backend.tape.close_region(self._region)
            finally:
                if not self._several:
                    _leave_thread(self._backend.spec.name)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.shared: dict[str, SharedRegion] = {}


_local = _PerThread()
_lock = threading.Lock()
_thread_of: dict[str, int] = {}
"""The one thread with a region, for backends that can't serve several."""


def join(backend: Backend, listener: Listener, leaves: Sequence[Any], others: bool) -> SharedRegion:
    """Open the thread's region, or join it; undo with :meth:`SharedRegion.leave`.

    Parameters
    ----------
    backend
        Whose region.
    listener
        Who is told of uses.
    leaves, others
        See :meth:`SharedRegion.expect`.

    Raises
    ------
    UnsupportedError
        If the backend does not declare threads and another thread has an open collector.
    """
    name = backend.spec.name
    shared = _local.shared.get(name)
    if shared is not None:
        shared.deliver()
        shared.expect(leaves, others)
        shared._listeners.append(listener)
        return shared
    several = backend.spec.guarantees.get(Guarantee.THREADS) == "kept"
    if not several:
        _enter_thread(name)
    try:
        shared = SharedRegion(backend, listener, several)
        try:
            shared.expect(leaves, others)
        except BaseException:
            backend.tape.close_region(shared._region)
            raise
    except BaseException:
        if not several:
            _leave_thread(name)
        raise
    _local.shared[name] = shared
    return shared


def listens(block: Any) -> bool:
    """Whether a collector of this very block is open in this thread."""
    shared = _local.shared.get(block.backend.spec.name)
    return shared is not None and any(listener.block is block for listener in shared._listeners)


def _enter_thread(name: str) -> None:
    me = threading.get_ident()
    with _lock:
        if _thread_of.setdefault(name, me) != me:
            raise UnsupportedError(
                f"backend {name!r} does not support collectors in several threads; close the collector of the other thread first"
            )


def _leave_thread(name: str) -> None:
    with _lock:
        _thread_of.pop(name, None)

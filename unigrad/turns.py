"""Turns of threads at one model: what exchanges its buffers or modes for a while has it alone.

A recompute puts the buffers of its forward into the model, and a frozen normalization layer is in inference mode during a call. A
thread that ran the same model meanwhile would use them, and what it wrote would be lost.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from unigrad.errors import UnsupportedError

__all__ = ["Turn", "taken", "thread"]

WAIT_S = 300.0
"""Seconds after which two threads are taken to wait for each other."""


_numbers = itertools.count()


class _Local(threading.local):
    def __init__(self) -> None:
        self.owner = next(_numbers)  # not the system's number of the thread, which another gets when this one has ended


_local = _Local()
_changed = threading.Condition(threading.Lock())
_taken: list[Turn] = []


def thread() -> int:
    """Return the thread for which this one works: a recompute, in whatever thread, belongs to that of its forward."""
    return _local.owner


class Turn:
    """A context in which some layers belong to a thread, together with others that change nothing, or alone.

    Parameters
    ----------
    layers
        Ids of layers; those of none are waited for by nobody.
    alone
        Whether no other thread may have one of them.
    owner
        The thread for which it is; by default the present one. A thread never waits for itself.

    Raises
    ------
    UnsupportedError
        When entered, if another thread has kept one of the layers too long.
    """

    __slots__ = ("_alone", "_before", "_layers", "_owner")

    def __init__(self, layers: Iterable[int], alone: bool, owner: int | None = None) -> None:
        self._layers = frozenset(layers)
        self._alone = alone
        self._owner = thread() if owner is None else owner
        self._before = self._owner

    def __enter__(self) -> Turn:
        with _changed:
            self._wait()
            _taken.append(self)
        self._before, _local.owner = _local.owner, self._owner
        return self

    def extend(self, layers: frozenset[int]) -> None:
        """Take further layers, which were met late."""
        with _changed:
            self._layers |= layers
            self._wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _local.owner = self._before
        with _changed:
            _taken.remove(self)
            _changed.notify_all()

    def _wait(self) -> None:
        if not self._is_free() and not _changed.wait_for(self._is_free, WAIT_S):
            raise UnsupportedError(
                f"another thread has used the same model for {WAIT_S:.0f} s, in a way that can't be shared: a recompute, a frozen layer or "
                "a part of a batch exchanges its buffers or modes meanwhile. Give each thread a copy (copy.deepcopy), or let the threads "
                "not wait for each other inside of a forward"
            )

    def _is_free(self) -> bool:
        return all(
            other is self
            or other._owner == self._owner
            or not (other._alone or self._alone)
            or other._layers.isdisjoint(self._layers)
            for other in _taken
        )


@contextmanager
def taken(layers: Iterable[int], alone: Callable[[], bool]) -> Iterator[Turn]:
    """Take a turn; whether alone is asked once more in it, since a thread that had one may have shown modes that do not last."""
    needed = alone()
    while True:
        with Turn(layers, needed) as turn:
            if needed or not alone():
                yield turn
                return
        needed = True

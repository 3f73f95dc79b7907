"""Losses that layers of Keras add in a region: what the forward has left of them, and nothing of what a repetition adds.

Keras holds them in the layers, and a layer drops its own and those of all layers in it when it is called in no other call. Both happen
in a region as they happen outside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from unigrad_tensorflow.calls import Patched

__all__ = ["exchanged", "losses", "part"]

_LATER = "a part has run"
"""Key of what the parts of a batch share."""


class Added:
    """What layers add while it is open.

    Parameters
    ----------
    apart
        Whether layers are without losses of earlier calls meanwhile.
    keeps
        Whether what is left of it stays with the layers.
    """

    def __init__(self, apart: bool, keeps: bool) -> None:
        self.apart = apart
        self.keeps = keeps
        self.found: list[tuple[Any, Any]] = []
        self._before: dict[int, tuple[Any, list[Any]]] = {}

    def put_aside(self, layer: Any) -> None:
        """Take from a layer what it had when this was opened."""
        held = layer._losses
        if self.apart and id(held) not in self._before:
            self._before[id(held)] = held, list(held)
            held.clear()

    def put_back(self) -> None:
        """Give the layers back what they had, before what they have got since if it stays."""
        for held, before in reversed(self._before.values()):
            after = list(held) if self.keeps else []
            held.clear()
            held.extend([*before, *after])

    def left(self) -> list[tuple[Any, Any]]:
        """Return layer and loss for each that was not dropped again."""
        return [(layer, loss) for layer, loss in self.found if any(loss is one for one in layer._losses)]

    def drop(self) -> None:
        """Take from the layers what was found."""
        for layer, loss in self.found:
            _exchange(layer._losses, loss, [])

    def replace(self, layer: Any, old: Any, new: Any) -> None:
        """Take another tensor for a loss that was found."""
        for index, (owner, loss) in enumerate(self.found):
            if owner is layer and loss is old:
                self.found[index] = layer, new
                return


def _exchange(held: list[Any], old: Any, new: list[Any]) -> None:
    index = next((index for index, one in enumerate(held) if one is old), None)
    if index is not None:
        everything = [*held[:index], *new, *held[index + 1 :]]
        held.clear()
        held.extend(everything)


class _Open(threading.local):
    def __init__(self) -> None:
        self.all: list[Added] = []

    def visible(self) -> list[Added]:
        """Return those that a call concerns, the outermost first: what is repeated concerns nothing around it."""
        first = max((index for index, one in enumerate(self.all) if not one.keeps), default=0)
        return self.all[first:]


_open = _Open()


def _add_loss(self: Any, loss: Any) -> None:
    visible = _open.visible()
    for one in visible:
        one.put_aside(self)
    _adding.plain(self, loss)
    for one in visible:
        one.found.extend((self, leaf) for leaf in keras.tree.flatten(loss))


def _clear_losses(self: Any) -> None:
    for one in _open.visible():
        one.put_aside(self)
    _clearing.plain(self)


_adding = Patched("add_loss", _add_loss)
_clearing = Patched("_clear_losses", _clear_losses)


def _nothing(*_: Any) -> None:
    """Stand for a listener; what is open is told instead."""


@contextmanager
def _opened(added: Added) -> Iterator[Added]:
    with _adding.telling(_nothing), _clearing.telling(_nothing):
        _open.all.append(added)
        try:
            yield added
        except BaseException:
            added.drop()
            raise
        finally:
            _open.all.remove(added)
            added.put_back()


@contextmanager
def losses(again: bool) -> Iterator[Added]:
    """Take note of what layers add as losses; ``again`` leaves the layers as they are."""
    with _opened(Added(apart=again, keeps=not again)) as added:
        yield added


@contextmanager
def part(shared: dict[Any, Any]) -> Iterator[None]:
    """Surround the call of one part of a batch: what the parts before have added stays, and is not seen in it."""
    if _LATER not in shared:
        shared[_LATER] = True
        yield
        return
    with _opened(Added(apart=True, keeps=True)):
        yield


def exchanged(added: Sequence[tuple[Any, Any]], made: Sequence[Any]) -> None:
    """Let layers hold what was made of the losses that they have added."""
    for (layer, loss), new in zip(added, made, strict=True):
        _exchange(layer._losses, loss, [new])
        for one in _open.visible():
            one.replace(layer, loss, new)

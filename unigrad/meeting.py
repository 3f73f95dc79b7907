"""Notice native models that a function calls although no block of its region holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from unigrad.block import Block
from unigrad.protocols import Backend
from unigrad.wrapping import wrap

__all__ = ["Meetings"]


class Meetings:
    """Hands over the block of each unknown model just before it first runs.

    Parameters
    ----------
    backend
        The backend of the models.
    blocks
        Blocks whose models are known.
    take
        Called with the block of an unknown model, before the model has changed anything.
    """

    def __init__(self, backend: Backend, blocks: Iterable[Block], take: Callable[[Block], None]) -> None:
        self._backend = backend
        self._take = take
        self._known: dict[int, Any] = {}
        for block in blocks:
            for _, part in block.parts():
                if part.inner is not None:
                    self._know(part.inner)
                    self._known[id(part.native)] = part.native

    def _know(self, model: Any) -> None:
        # Held, so that the ids stay theirs.
        self._known.update((id(layer), layer) for layer in self._backend.block.layers(model))

    def _meet(self, model: Any) -> None:
        if id(model) not in self._known:
            self._know(model)
            self._take(wrap(model))

    def watched(self) -> AbstractContextManager[Any]:
        """Return a context in which models that run in this thread are met."""
        return self._backend.block.watch_calls(self._meet, self._known.values())

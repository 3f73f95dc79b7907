"""What a call must hold because it is frozen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unigrad.buffers import copies
from unigrad.protocols import Backend, Entry

__all__ = ["Frozen"]


@dataclass(frozen=True)
class Frozen:
    """What a call must hold: normalization layers in inference mode, and buffers that keep their values.

    Parameters
    ----------
    backend, model
        The backend and the (unwrapped) model.
    norms
        Frozen normalization layers.
    buffers
        Frozen buffers of other layers.
    """

    backend: Backend
    model: Any
    norms: tuple[Any, ...]
    buffers: tuple[Entry, ...]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a call write into copies of the frozen buffers, which are then thrown away."""
        if not self.buffers:
            yield
            return
        primitive = self.backend.block
        # What stands there now may not be what stood there when this was made: a recompute exchanges buffers too.
        live = primitive.swap(self.buffers, [entry.tensor for entry in self.buffers])
        primitive.swap(self.buffers, copies(self.backend, live))
        try:
            yield
        finally:
            primitive.swap(self.buffers, live)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Surround a forward that runs inside the native call, so that its mode is already chosen."""
        primitive = self.backend.block
        modes = primitive.modes(self.model)
        try:
            for layer in self.norms:
                primitive.set_training(layer, False)
            with self.unchanged():
                yield
        finally:
            primitive.set_modes(self.model, modes)

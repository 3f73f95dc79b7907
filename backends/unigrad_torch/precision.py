"""The mixed-precision context (autocast) as it was at one moment."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext

import torch

from unigrad_torch.rng import in_use


class Precision:
    """State of autocast on the CPU and on every accelerator in use."""

    __slots__ = ("cache", "states")

    def __init__(self) -> None:
        self.cache = torch.is_autocast_cache_enabled()
        self.states = _states()

    def restored(self) -> AbstractContextManager[object]:
        """Surround a recompute with that state."""
        if not any(enabled for _, enabled, _ in (*self.states, *_states())):
            return nullcontext()
        contexts = ExitStack()
        for device, enabled, dtype in self.states:
            contexts.enter_context(torch.autocast(device, dtype, enabled, self.cache))
        return contexts


def _states() -> list[tuple[str, bool, torch.dtype]]:
    return [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", *in_use())
    ]

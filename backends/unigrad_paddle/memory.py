"""Bytes held for backward: what Paddle's allocator gave out in a region of code and has not got back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unigrad_paddle.framework import allocated


class _Meter:
    """Result: bytes that were held at the end beyond those at the beginning."""

    bytes: int = 0


@contextmanager
def measure(held: Sequence[Any]) -> Iterator[_Meter]:
    """Count the bytes of tensors made inside the ``with`` and alive when it ends; ``held`` exists before, so it is not counted.

    The allocator knows sums only. What the callers' variables hold is held meanwhile, since a variable used again inside would free
    what is older than the count.
    """
    frames = _frames()
    older = [list(frame.f_locals.values()) for frame in frames]
    gc.collect()  # what waits for the collector would be freed inside
    before = allocated()
    meter = _Meter()
    try:
        yield meter
        gc.collect()
        meter.bytes = max(0, allocated() - before)
    finally:
        del older
        for frame in frames:
            frame.f_locals  # noqa: B018  # brings what Python keeps for it up to date, which drops the old values


def _frames() -> list[Any]:
    frames = []
    frame = sys._getframe(2)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return frames

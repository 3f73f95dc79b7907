"""Bytes held for backward: the storages made in a region of code and still alive at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore
from mindspore import Tensor

from unigrad_mindspore.kernels import settle
from unigrad_mindspore.pynative import holders, pop_mode, push_mode


class _Meter:
    """Result: bytes of the storages that were alive at the end."""

    bytes: int = 0


class _Tracker(mindspore.MsDispatchMode):  # type: ignore[misc]  # the framework has no types
    """See every tensor that goes into or comes out of an operation; the count of its holders tells which memory lives on."""

    def __init__(self, held: Sequence[Any]) -> None:
        self.older: dict[int, Any] = {}
        self.made: dict[int, tuple[Any, int]] = {}
        for tensor in held:
            self._older(tensor)

    def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        for value in _tensors(args):
            self._older(value)
        result = func(*args)
        for value in _tensors((result,)):
            address = value.asnumpy().base
            if id(address) not in self.older and id(address) not in self.made:
                # the addresses are held, so that their ids stay theirs
                self.made[id(address)] = (address, value.nbytes)
        return result

    def _older(self, tensor: Any) -> None:
        address = tensor.asnumpy().base
        if id(address) not in self.made:
            self.older[id(address)] = address


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


@contextmanager
def measure(held: Sequence[Any]) -> Iterator[_Meter]:
    """Count the bytes of storages made inside the ``with`` and alive when it ends, ``held`` not counted."""
    meter = _Meter()
    tracker = _Tracker(held)
    push_mode(tracker)
    try:
        yield meter
    finally:
        pop_mode()
    settle()
    made = list(tracker.made.values())
    tracker.made.clear()
    meter.bytes = sum(size for address, size in made if holders(address) > 0)

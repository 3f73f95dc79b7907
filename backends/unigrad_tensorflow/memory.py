"""Bytes held for backward: tensors made in a region of code and still alive at its end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from unigrad.errors import UnsupportedError
from unigrad_tensorflow.arrays import is_variable, memory_of, value
from unigrad_tensorflow.graph import opened
from unigrad_tensorflow.private import add_callback, any_tape, remove_callback

__all__ = ["measure"]


class Meter:
    """Result of :func:`measure`."""

    bytes: int = 0


def _extent(tensor: Any) -> tuple[int, int]:
    array = memory_of(tensor)
    start = int(array.__array_interface__["data"][0])
    return start, start + array.nbytes


@contextmanager
def measure(held: Sequence[Any]) -> Iterator[Meter]:
    """Count the bytes of distinct memory that operations inside the ``with`` made and tensors still hold when it ends."""
    if not tf.executing_eagerly():
        raise UnsupportedError("bytes can't be counted inside a tf.function, which computes nothing while it is traced")
    meter = Meter()
    made: list[Any] = []
    older = {_extent(value(tensor)) for tensor in held if is_variable(tensor)}
    alive: dict[int, Any] = {}

    def note(
        operation: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        for tensor in inputs:
            if id(tensor) not in alive and tensor.dtype not in _WITHOUT:
                older.add(_extent(tensor))
        for tensor in outputs:
            if tensor.dtype not in _WITHOUT:
                key = id(tensor)
                alive[key] = True
                made.append(weakref.ref(tensor, lambda _, key=key: alive.pop(key, None)))

    with ExitStack() as stack:
        if not any_tape():  # where nothing records, nothing is held for a backward
            stack.enter_context(opened(tf.GradientTape()))
        add_callback(note)
        stack.callback(remove_callback, note)
        yield meter
        meter.bytes = _count(made, older)


def _count(made: list[Any], older: set[tuple[int, int]]) -> int:
    """Return the bytes that lie in some tensor and in none of the older ones; a part of a tensor may share its memory."""
    alive = [tensor for tensor in (reference() for reference in made) if tensor is not None]
    total, last = 0, 0
    marks = [(*extent, False) for extent in older] + [(*_extent(tensor), True) for tensor in alive]
    for start, stop, counted in sorted(marks, key=lambda mark: (mark[0], mark[2])):
        start = max(start, last)
        if stop > start:
            total += (stop - start) * counted
            last = stop
    return total


_WITHOUT = (tf.resource, tf.variant, tf.string)

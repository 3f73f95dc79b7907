"""Bytes held for backward: tensors made in a region of code and still alive at its end."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from unigrad.errors import UnsupportedError
from unigrad_tensorflow.arrays import is_variable, value
from unigrad_tensorflow.graph import opened
from unigrad_tensorflow.private import add_callback, any_tape, remove_callback

__all__ = ["measure"]


class Meter:
    """Result of :func:`measure`."""

    bytes: int = 0


def _place(tensor: Any) -> tuple[int, int]:
    array = np.asarray(tensor)
    return int(array.__array_interface__["data"][0]), array.nbytes


@contextmanager
def measure(held: Sequence[Any]) -> Iterator[Meter]:
    """Count the bytes of distinct memory that operations inside the ``with`` made and tensors still hold when it ends."""
    if not tf.executing_eagerly():
        raise UnsupportedError("bytes can't be counted inside a tf.function, which computes nothing while it is traced")
    meter = Meter()
    made: list[Any] = []
    older: set[int] = {_place(value(tensor))[0] for tensor in held if is_variable(tensor)}
    alive: dict[int, Any] = {}

    def note(
        operation: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is not None:
            return
        for tensor in inputs:
            if id(tensor) not in alive and tensor.dtype not in _WITHOUT:
                older.add(_place(tensor)[0])
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


def _count(made: list[Any], older: set[int]) -> int:
    found = {}
    for reference in made:
        tensor = reference()
        if tensor is not None:
            place, size = _place(tensor)
            if place not in older:
                found[place] = size
    return sum(found.values())


_WITHOUT = (tf.resource, tf.variant, tf.string)

"""The dispatch mode that sees each operation of a thread: which leaves it uses, what it draws, what a recompute can't repeat."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore
from mindspore import Tensor

from unigrad.errors import UnsupportedError
from unigrad_mindspore.draws import DRAWS, UNSEEDED, stream
from unigrad_mindspore.pynative import (
    grad_flag,
    mode_depth,
    pop_mode,
    precisions,
    push_mode,
    recording_allowed,
    repair_precisions,
    set_flags,
)

__all__ = ["enter", "leave", "observe", "paused", "repeatable", "seen", "unobserved"]

Observer = Callable[[Any], None]

_UNSEEN = frozenset({"Concat", "Contiguous", "SelectView", "Slice", "StridedSlice"})
"""Nodes of operations that tell no mode of themselves, as a slice of a parameter; they are looked through."""

_SPARSE = frozenset({"EmbeddingLookup", "SparseGatherV2"})


class _Local(threading.local):
    depth = 0
    observer: Observer | None = None
    repeatable = 0


_local = _Local()


class _Mode(mindspore.MsDispatchMode):  # type: ignore[misc]  # the framework has no types
    """What runs for each operation in a thread with a region, a Block's call or a checkpoint.

    Only the operation itself may be returned: another in its place can wait for itself for ever where its input is alive.
    """

    def __ms_dispatch__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        name = func.name
        draw = DRAWS.get(name)
        if draw is not None:
            args = draw(args, *stream.next())
        elif name in UNSEEDED and _local.repeatable:
            raise UnsupportedError(
                f"the random operation {name} of mindspore takes no seed on the CPU, so that a recompute would draw other "
                "numbers; leave it outside of checkpoint and microbatch"
            )
        elif name in _SPARSE and grad_flag() and recording_allowed():
            raise UnsupportedError(
                "a sparse lookup (nn.EmbeddingLookup with sparse=True) has a gradient that does not say which rows it is of, in the "
                "PYNATIVE_MODE of mindspore; use nn.Embedding, or target='DEVICE' with sparse=False"
            )
        observer = _local.observer
        if observer is not None and grad_flag() and recording_allowed():
            _look(args, observer)
        on, allowed = grad_flag(), recording_allowed()
        try:
            return func(*args)
        except BaseException:
            set_flags(on, allowed)  # an operation without a kernel switches recording off, and forgets mixed precision
            repair_precisions(len(precisions()))
            raise


_mode = _Mode()


def _look(values: Any, observer: Observer) -> None:
    for value in values:
        if isinstance(value, Tensor):
            node = value._grad_node if value._requires_grad else None
            if node is not None:
                _tell(node, observer)
        elif isinstance(value, tuple | list):
            _look(value, observer)


def _tell(node: Any, observer: Observer) -> None:
    if node.is_leaf():
        observer(node)
    elif node.name() in _UNSEEN:
        for below, _ in node.next_functions:
            if below is not None:
                _tell(below, observer)


def observe(observer: Observer | None) -> None:
    """Tell ``observer`` of the node of each leaf that a recorded operation of this thread uses; None tells nobody."""
    _local.observer = observer


def enter() -> None:
    """Open the mode in this thread unless it is open."""
    _local.depth += 1
    if _local.depth == 1:
        try:
            push_mode(_mode)
        except BaseException:  # of an earlier operation; nobody will leave
            leave()
            raise


def leave() -> None:
    """Undo ``enter``."""
    _local.depth -= 1
    if not _local.depth:
        pop_mode()


@contextmanager
def seen() -> Iterator[None]:
    """Surround operations whose random numbers are to come from the stream."""
    enter()
    try:
        yield
    finally:
        leave()


@contextmanager
def paused() -> Iterator[None]:
    """Surround a differentiation: its operations use and draw nothing, and telling the mode of each would cost time."""
    if not _local.depth or mode_depth() != 1:  # a mode of the user's is above ours
        with unobserved():
            yield
        return
    depth, _local.depth = _local.depth, 0
    try:
        pop_mode()
        with unobserved():
            yield
    finally:
        _local.depth = depth
        push_mode(_mode)


@contextmanager
def unobserved() -> Iterator[None]:
    """Surround operations that are no use of what they take."""
    observer, _local.observer = _local.observer, None
    try:
        yield
    finally:
        _local.observer = observer


@contextmanager
def repeatable() -> Iterator[None]:
    """Surround a function that will be run again: random operations without a seed of ours are refused."""
    _local.repeatable += 1
    try:
        with seen():
            yield
    finally:
        _local.repeatable -= 1

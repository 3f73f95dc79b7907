"""Paddle's two engines, and what is known of the run that a thread is in: of which engine, and whether it is the last of its graph.

The functions behind ``Tensor.backward`` and ``paddle.grad`` are exchanged when this is loaded. The second one is no engine for two at
a time: Paddle 3.3.1 keeps what it is asked for in one place of the process, so that one inside another, or in two threads, ends the
process. Here threads wait for each other, and one inside another is an error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import paddle
from paddle.base.core import eager

from unigrad.errors import UnsupportedError
from unigrad_paddle.faults import forget, raised_inside

__all__ = ["creates_graph", "in_partial", "is_last", "is_running", "releasing"]

_NESTED = (
    "paddle.grad inside another paddle.grad, which also serves a collector of inputs only, or of a loss that reaches leaves of no block: "
    "this would end the process. Use Tensor.backward in the inner place, or let each collector have a block that holds all leaves of its "
    "loss"
)


class _Run(NamedTuple):
    partial: bool
    last: bool
    create: bool


class _State(threading.local):
    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.declared: bool | None = None


_state = _State()
_one = threading.Lock()
_backward: Any = eager.run_backward
_grad: Any = eager.run_partial_grad


def run_backward(tensors: Any, vectors: Any, retain_graph: Any = False, *rest: Any) -> Any:
    """Run the engine of ``Tensor.backward``."""
    declared = _state.declared
    with _run(_Run(False, not retain_graph if declared is None else declared, False)):
        return _backward(tensors, vectors, retain_graph, *rest)


def run_partial_grad(
    outputs: Any, inputs: Any, vectors: Any, retain_graph: Any, create_graph: Any, *rest: Any, **options: Any
) -> Any:
    """Run the engine of ``paddle.grad``, which never releases a graph by itself."""
    if in_partial():
        raise UnsupportedError(_NESTED)
    with _one, _run(_Run(True, bool(_state.declared), bool(create_graph))):
        return _grad(outputs, inputs, vectors, retain_graph, create_graph, *rest, **options)


@contextmanager
def _run(run: _Run) -> Iterator[None]:
    declared, _state.declared = _state.declared, None
    recording = paddle.is_grad_enabled()
    if not _state.runs:
        forget()
    _state.runs.append(run)
    try:
        yield
    except BaseException as error:
        paddle.set_grad_enabled(recording)  # some hooks that raise leave it off
        meant = raised_inside(error)
        if meant is error:
            raise
        raise meant from error
    finally:
        _state.runs.pop()
        _state.declared = declared


def is_running() -> bool:
    """Whether this thread is inside a backward, of whomever."""
    return bool(_state.runs)


def in_partial() -> bool:
    """Whether this thread is inside a ``paddle.grad``."""
    return any(run.partial for run in _state.runs)


def runs_copies() -> bool:
    """Whether the run that this thread is in works on copies of the nodes, so that what it runs can be run again."""
    return bool(_state.runs) and _state.runs[-1].partial


def is_last() -> bool:
    """Whether the run that this thread is in is the last one of its graph."""
    return bool(_state.runs) and _state.runs[-1].last


def creates_graph() -> bool:
    """Whether the run that this thread is in records what it computes."""
    return bool(_state.runs) and _state.runs[-1].create


@contextmanager
def releasing(last: bool) -> Iterator[None]:
    """Say of the next run whether it is the last one of its graph, whatever Paddle is told."""
    before, _state.declared = _state.declared, last
    try:
        yield
    finally:
        _state.declared = before


eager.run_backward = run_backward
eager.run_partial_grad = run_partial_grad

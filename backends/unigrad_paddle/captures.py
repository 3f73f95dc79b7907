"""What a checkpointed function brings into its graph that is no argument: captured tensors, parameters made inside."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from unigrad.captures import reachable
from unigrad.errors import CapturedTensorError
from unigrad_paddle.framework import Parameter, Tensor, node_of

_CLOSED = frozenset({"paddle", "numpy"})


def seen(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield tensors that need a gradient and that a function can see, each with the expression by which it does."""
    for name, value in reachable(function, lambda found: isinstance(found, Tensor), (), _CLOSED, everywhere=True):
        if isinstance(value, Tensor) and not value.stop_gradient:
            yield name, value


def intermediates(function: Any) -> dict[Any, tuple[str, Any]]:
    """Return the recorded tensors that a function can see, by their nodes, each with the expression by which it does."""
    return {node_of(tensor): (name, tensor) for name, tensor in seen(function) if not tensor.is_leaf}


def refuse_intermediate(captured: Mapping[Any, tuple[str, Any]], nodes: Sequence[Any]) -> None:
    """Raise ``CapturedTensorError`` if a node of a region's graph is that of a tensor made before the region began."""
    for node in nodes if captured else ():
        if node in captured:
            name, tensor = captured[node]
            raise CapturedTensorError(
                f"{name!r}, a tensor of shape {tuple(tensor.shape)} made before the checkpointed function began, is used in it "
                "without being an argument; pass it as an argument, or compute it inside"
            )


def captured_leaf(function: Any, node: Any) -> Any | None:
    """Return the leaf of a node, if the function can see it."""
    return next((tensor for _, tensor in seen(function) if tensor.is_leaf and node_of(tensor) is node), None)


def refuse_unknown() -> None:
    """Raise ``CapturedTensorError`` for a leaf that could not be found."""
    raise CapturedTensorError(
        "the checkpointed function uses a tensor that needs a gradient, is no argument, belongs to none of its blocks, and could not "
        "be found; pass it as an argument. (Neither can a leaf be told that was made in it, by stop_gradient = False, by paddle.grad with "
        "create_graph=True, or by watch: do this outside)"
    )


class _Lists(threading.local):
    def __init__(self) -> None:
        self.open: list[list[Any]] = []


_lists = _Lists()
_lock = threading.Lock()
_users = 0
_plain: Any = Parameter.__init__


def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    _plain(self, *args, **kwargs)
    for made in _lists.open:
        made.append(self)


@contextmanager
def created() -> Iterator[list[Any]]:
    """Collect the parameters that this thread makes; Paddle has no hook for it."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            Parameter.__init__ = _init
    made: list[Any] = []
    _lists.open.append(made)
    try:
        yield made
    finally:
        _lists.open[:] = [other for other in _lists.open if other is not made]
        with _lock:
            _users -= 1
            if not _users:
                Parameter.__init__ = _plain

"""Leaves that tell of their first use in a recorded operation: their class is exchanged until then.

torch calls ``__torch_function__`` of a subclass for every operation that has such an argument, fused layers and lists of weights
included, so that only the first operation with each leaf costs anything. A mode would be told of every operation of a step, which
costs a small model a third of its time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from unigrad_torch.looks import is_look

__all__ = ["Marks", "can_mark"]

_untold = torch._C.DisableTorchFunctionSubclass
_lock = threading.Lock()
_waiting: dict[int, int] = {}
"""Number of regions, of all threads, that wait for a use of the marked leaf of this id; a region holds the leaf."""


class _Open(threading.local):
    marks: Marks | None = None


_open = _Open()


class _Marked:
    """Put before the class of a leaf that waits for its first use."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        marks = _open.marks
        if marks is not None and torch.is_grad_enabled() and not is_look(func):
            _search(marks, args)
            if kwargs:
                _search(marks, kwargs.values())
        with _untold():
            result = func(*args, **kwargs) if kwargs else func(*args)
        plain = _PLAIN.get(type(result))
        if plain is not None and id(result) not in _waiting:
            result.__class__ = plain  # a copy of a marked leaf waits for nothing
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        mark = self.__class__
        self.__class__ = _PLAIN[mark]  # type: ignore[assignment]  # the file must not name a class that waits
        try:
            return self.__reduce_ex__(protocol)
        finally:
            self.__class__ = mark


class _MarkedParameter(_Marked, Parameter):  # type: ignore[misc]  # torch types __torch_function__ as an attribute
    pass


class _MarkedTensor(_Marked, Tensor):  # type: ignore[misc]  # the same
    pass


for _class, _name in ((_MarkedParameter, "Parameter"), (_MarkedTensor, "Tensor")):
    _class.__name__ = _class.__qualname__ = _name  # what a user may print meanwhile

_MARK: dict[type, type] = {Parameter: _MarkedParameter, Tensor: _MarkedTensor}
_PLAIN: dict[type, type] = {mark: plain for plain, mark in _MARK.items()}


def can_mark(leaf: Any) -> bool:
    """Whether a leaf is of a class that can be exchanged."""
    return type(leaf) in _MARK or type(leaf) in _PLAIN


def _search(marks: Marks, values: Iterable[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            marks.use(value)
        elif kind is tuple or kind is list:
            _search(marks, value)
        elif kind is dict:
            _search(marks, value.values())


class Marks:
    """The marked leaves of one thread's region.

    Parameters
    ----------
    observer
        Called once for each expected leaf, at its first use.
    """

    def __init__(self, observer: Callable[[Any], None]) -> None:
        self._observer = observer
        self._leaves: dict[int, Any] = {}

    def open(self) -> None:
        """Begin to listen in this thread."""
        _open.marks = self

    def expect(self, leaves: Iterable[Any]) -> None:
        """Mark leaves that take a gradient."""
        mine = self._leaves
        with _lock:
            for leaf in leaves:
                key = id(leaf)
                if key in mine or not leaf.requires_grad:
                    continue
                mine[key] = leaf
                count = _waiting.get(key, 0)
                _waiting[key] = count + 1
                if not count:
                    leaf.__class__ = _MARK[type(leaf)]

    def use(self, leaf: Any) -> None:
        """Tell the observer of a leaf if it waits in this region."""
        if self._leaves.pop(id(leaf), None) is not None:
            with _lock:
                _unmark(leaf)
            self._observer(leaf)

    def close(self) -> None:
        """Stop, and give all leaves their own class again."""
        if _open.marks is self:
            _open.marks = None
        with _lock:
            for leaf in self._leaves.values():
                _unmark(leaf)
        self._leaves = {}


def _unmark(leaf: Any) -> None:
    key = id(leaf)
    count = _waiting[key] - 1
    if count:
        _waiting[key] = count
    else:
        del _waiting[key]
        leaf.__class__ = _PLAIN[type(leaf)]

"""Leaves that tell of their first use in a recorded operation: their class is exchanged until then.

torch calls ``__torch_function__`` of a subclass for every operation that has such an argument, fused layers and lists of weights
included, so that only the first operation with each leaf costs anything. A mode would be told of every operation of a step, which
costs a small model a third of its time.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling
from torch.nn import Parameter

from unigrad_torch.looks import is_look

__all__ = ["MARKED", "Marks", "can_mark", "unnoticed"]

_untold = torch._C.DisableTorchFunctionSubclass
_NEW_PARAMETER = Parameter.__new__.__code__
_lock = threading.Lock()
_open: list[Marks] = []
"""Marks of all threads that are open now."""


class _Local(threading.local):
    marks: Marks | None = None


_local = _Local()


class _Marked:
    """Put before the class of a leaf that waits for its first use."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # In a traced call no class is exchanged, and nothing here may stop the tracing.
        if is_compiling():
            with _untold():
                return func(*args, **kwargs) if kwargs else func(*args)
        if func is Tensor.detach and sys._getframe(1).f_code is _NEW_PARAMETER:
            # Parameter(leaf) wants of a subclass, which it takes the marked leaf for, that it detaches to its own kind.
            leaf = args[0]
            leaf.__class__ = Parameter
            if _local.marks is not None:
                _local.marks.told.append(leaf)
            made = func(leaf)
            made.__class__ = Parameter
            return made
        marks = _local.marks
        if marks is not None and is_grad_enabled() and not is_look(func):
            found: list[Any] = []
            _find(args, found)
            if kwargs:
                _find(kwargs.values(), found)
            if found and marks.use(found):  # the call goes its way as if nothing had been marked
                return func(*args, **kwargs) if kwargs else func(*args)
        others = tuple([kind for kind in types if kind not in _PLAIN])
        if others:  # a user's own kinds of tensors, which may keep more than values: they are to see what they see without marks
            for kind in others:
                result = kind.__torch_function__(func, others, args, kwargs or {})
                if result is not NotImplemented:
                    return result
            return NotImplemented
        with _untold():
            result = func(*args, **kwargs) if kwargs else func(*args)
        if type(result) in _PLAIN and not any(result is value for value in args):
            result.__class__ = _PLAIN[type(result)]  # a copy of a marked leaf waits for nothing
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        mark = self.__class__
        self.__class__ = _PLAIN[mark]  # type: ignore[assignment]  # a copy waits for nothing
        try:
            return copy.deepcopy(self, memo)
        finally:
            self.__class__ = mark

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


MARKED = frozenset(_PLAIN)
"""Classes of marked leaves."""
_KNOWN = MARKED.union(_MARK)


def can_mark(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are of classes that can be exchanged."""
    return _KNOWN.issuperset(map(type, leaves))


def _find(values: Iterable[Any], found: list[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind in _PLAIN:
            found.append(value)
        elif kind is tuple or kind is list:
            _find(value, found)
        elif kind is dict:
            _find(value.values(), found)


class Marks:
    """The marked leaves of one thread's region; it listens from when it is made."""

    __slots__ = ("_waiting", "told")

    def __init__(self) -> None:
        self.told: list[Any] = []
        self._waiting: dict[int, Any] = {}
        _local.marks = self
        _open.append(self)

    def expect(self, leaves: Sequence[Any]) -> None:
        """Mark leaves that take a gradient."""
        waiting = self._waiting
        with _lock:
            for leaf in leaves:
                mark = _MARK.get(type(leaf))
                if mark is not None:
                    if not leaf.requires_grad:
                        continue
                    leaf.__class__ = mark
                waiting[id(leaf)] = leaf

    def use(self, leaves: list[Any]) -> bool:
        """Take note of the use of marked leaves; return whether all of them have their own class again."""
        if len(_open) == 1:
            self.told += leaves
            for leaf in leaves:
                leaf.__class__ = _PLAIN.get(type(leaf), type(leaf))  # one leaf may stand in several places
            if len(_open) == 1:  # still: nobody has begun to wait for them meanwhile
                return True
        free = True
        with _lock:
            for leaf in leaves:
                key, kind = id(leaf), type(leaf)
                if self._waiting.pop(key, None) is not None:
                    self.told.append(leaf)
                if any(key in marks._waiting for marks in _open):
                    leaf.__class__ = _MARK.get(kind, kind)
                    free = False
                else:
                    leaf.__class__ = _PLAIN.get(kind, kind)
        return free

    def close(self) -> None:
        """Stop, and give all leaves their own class again."""
        _local.marks = None
        with _lock:
            _open.remove(self)
            waiting = self._waiting
            if MARKED.isdisjoint(map(type, waiting.values())):
                return  # every leaf was used, as in most steps
            for key, leaf in waiting.items():
                plain = _PLAIN.get(type(leaf))
                if plain is not None and not (_open and any(key in marks._waiting for marks in _open)):
                    leaf.__class__ = plain


@contextmanager
def unnoticed() -> Iterator[None]:
    """Let this thread use leaves without a note: a recompute is no use of what its forward used."""
    marks, _local.marks = _local.marks, None
    try:
        yield
    finally:
        _local.marks = marks

"""Tell which leaf tensors take part in recorded operations of a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import BaseTorchFunctionMode

from unigrad_torch.looks import is_look
from unigrad_torch.marks import Marks, can_mark

__all__ = ["Region", "pause", "resume"]


class Region:
    """A thread's region: marked leaves, or a mode that sees all operations where marks do not do.

    Module hooks would be wrong in both directions: they miss functional use and fused layers and report layers whose
    output is dropped.
    """

    __slots__ = ("_marks", "_mode", "_told")

    def __init__(self) -> None:
        self._told: list[Any] = []
        self._mode: _Mode | None = None
        self._marks: Marks | None = None

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Take note of the next use of each of these leaves, and of every trainable leaf if ``others``."""
        if self._mode is not None:
            return  # it notes each use
        if others or not can_mark(leaves):
            self._drop_marks()
            self._mode = _Mode(self._told.append)
            self._mode.open()
        else:
            if self._marks is None:
                self._marks = Marks()
            self._marks.expect(leaves)

    def used(self) -> list[Any]:
        """Return the leaves used since the last call."""
        if self._marks is not None:
            told, self._marks.told = self._marks.told, []
            return told
        told = list({id(leaf): leaf for leaf in self._told}.values())
        self._told.clear()
        return told

    def _drop_marks(self) -> None:
        marks, self._marks = self._marks, None
        if marks is not None:
            marks.close()
            self._told += marks.told

    def close(self) -> None:
        """Stop."""
        self._drop_marks()
        if self._mode is not None:
            self._mode.close()


class _Open(threading.local):
    mode: _Mode | None = None


_open = _Open()


def pause() -> _Mode | None:
    """Take the thread's mode off the stack, if there is one and it is on top, and return it for ``resume``.

    A differentiation is no use of its inputs, and torch would hand the call of ``autograd.grad`` to the mode, which costs as
    much as a small layer.
    """
    mode = _open.mode
    if mode is None:
        return None
    depth = torch._C._len_torch_function_stack()
    if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
        return None
    torch._C._pop_torch_function_stack()
    return mode


def resume(mode: _Mode | None) -> None:
    """Undo ``pause``."""
    if mode is not None:
        torch._C._push_on_torch_function_stack(mode)


class _Mode(BaseTorchFunctionMode):
    """Mode that tells ``observer`` of trainable leaves among the arguments of each recorded operation.

    Other modes may be opened and closed around it in any order.
    """

    def __init__(self, observer: Callable[[Any], None]) -> None:
        super().__init__()
        self._observer: Callable[[Any], None] | None = observer

    def open(self) -> None:
        """Begin to watch this thread."""
        torch._C._push_on_torch_function_stack(self)
        _open.mode = self

    def close(self) -> None:
        """Stop; modes of the user that were opened later stay on top."""
        self._observer = None
        _open.mode = None
        above = []
        while torch._C._len_torch_function_stack():
            mode = torch._C._pop_torch_function_stack()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            torch._C._push_on_torch_function_stack(mode)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.is_grad_enabled() and not is_look(func):
            self._search(args)
            if kwargs:
                self._search(kwargs.values())
        return func(*args, **kwargs) if kwargs else func(*args)

    def _search(self, values: Any) -> None:
        for value in values:
            kind = type(value)
            if kind is Parameter or isinstance(value, Tensor):
                if value.requires_grad and value.is_leaf and self._observer is not None:
                    self._observer(value)
            elif kind is tuple or kind is list:
                self._search(value)
            elif kind is dict:
                self._search(value.values())

"""Tell which leaf tensors take part in recorded operations of a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MethodWrapperType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import BaseTorchFunctionMode

# reading these attributes is an operation; reading any other is not
_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})

# calls that look at a tensor without computing with it, or that differentiate
_LOOKS = frozenset(
    {
        "__deepcopy__",
        "__format__",
        "__hash__",
        "__len__",
        "__reduce_ex__",
        "__repr__",
        "_is_view",
        "backward",
        "data_ptr",
        "dim",
        "element_size",
        "get_device",
        "grad",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_floating_point",
        "is_inference",
        "is_neg",
        "is_same_size",
        "is_set_to",
        "ndimension",
        "nelement",
        "numel",
        "register_hook",
        "requires_grad_",
        "size",
        "storage_offset",
        "stride",
        "untyped_storage",
    }
)


class _Open(threading.local):
    watcher: Watcher | None = None


_open = _Open()


def pause() -> Watcher | None:
    """Take the thread's watcher off the stack of modes, if it is on top, and return it for ``resume``.

    A differentiation is no use of its inputs, and torch would hand the call of ``autograd.grad`` to the mode, which costs as much as
    a small layer.
    """
    watcher = _open.watcher
    depth = torch._C._len_torch_function_stack()
    if watcher is None or not depth or torch._C._get_function_stack_at(depth - 1) is not watcher:
        return None
    torch._C._pop_torch_function_stack()
    return watcher


def resume(watcher: Watcher | None) -> None:
    """Undo ``pause``."""
    if watcher is not None:
        torch._C._push_on_torch_function_stack(watcher)


class Watcher(BaseTorchFunctionMode):
    """Mode that tells ``observer`` of trainable leaves among the arguments of each recorded operation.

    Module hooks would be wrong in both directions: they miss functional use and fused layers and report layers whose
    output is dropped. One object serves a thread's region; other modes may be opened and closed around it in any order.
    """

    def __init__(self, observer: Callable[[Any], bool]) -> None:
        super().__init__()
        self._observer: Callable[[Any], bool] | None = observer
        self._known: set[int] = set()

    def open(self) -> None:
        """Begin to watch this thread."""
        torch._C._push_on_torch_function_stack(self)
        _open.watcher = self

    def forget(self) -> None:
        """Tell the observer again of every leaf at its next use."""
        self._known.clear()

    def close(self) -> None:
        """Stop; modes of the user that were opened later stay on top."""
        self._observer = None
        _open.watcher = None
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
        if type(func) is not MethodWrapperType or func.__self__.__name__ in _VIEWS:
            for value in args:
                kind = type(value)
                if kind is Parameter:
                    if id(value) not in self._known:
                        self._tell(func, value)
                elif kind is Tensor:
                    if value.requires_grad and value.is_leaf:
                        self._tell(func, value)
                elif kind is tuple or kind is list:
                    self._search(func, value)
                elif isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                    self._tell(func, value)
            if kwargs:
                self._search(func, kwargs.values())
                return func(*args, **kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def _search(self, func: Any, values: Any) -> None:
        for value in values:
            if isinstance(value, Tensor):
                if value.requires_grad and value.is_leaf:
                    self._tell(func, value)
            elif isinstance(value, (tuple, list)):
                self._search(func, value)
            elif isinstance(value, dict):
                self._search(func, value.values())

    def _tell(self, func: Any, leaf: Any) -> None:
        if (
            self._observer is not None
            and id(leaf) not in self._known
            and leaf.requires_grad
            and torch.is_grad_enabled()
            and getattr(func, "__name__", "") not in _LOOKS
            and self._observer(leaf)
        ):
            self._known.add(id(leaf))  # the observer keeps alive what it knows, so that the id stays its own

"""Changes in place while a collector is open: arithmetic that writes nothing is refused, an assignment to a part is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mindspore import Tensor

from unigrad.errors import UnsupportedError
from unigrad_mindspore.pynative import unrecorded

__all__ = ["SILENT", "allow", "refuse"]

SILENT = {
    "add_": "x = x + y",
    "sub_": "x = x - y",
    "mul_": "x = x * y",
    "div_": "x = x / y",
    "floor_divide_": "x = x // y",
    "remainder_": "x = x % y",
    "exp_": "x = x.exp()",
}
"""Methods that write nothing, measured with MindSpore 2.10 on the CPU, and what to write; others without a kernel raise by themselves."""


class _Local(threading.local):
    refused = 0


_local = _Local()
_lock = threading.Lock()
_users = 0


def _refusing(name: str) -> Callable[..., Any]:
    plain = getattr(Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _local.refused:
            return plain(self, *args, **kwargs)
        raise UnsupportedError(
            f"Tensor.{name} of mindspore writes nothing into the tensor on the CPU, it only returns the result; write {SILENT[name]}"
        )

    return method


def _assign_part(self: Any, index: Any, value: Any) -> None:
    _plain_assign_part(self, index, value)
    if _local.refused:
        with unrecorded():
            self.copy_(self)  # counted by its version, so that a backward that needs the old values fails


_plain_assign_part = Tensor.__setitem__


def refuse() -> None:
    """Let this thread's in-place arithmetic raise, and have its assignments ``x[i] = y`` counted."""
    global _users
    _local.refused += 1
    with _lock:
        _users += 1
        if _users == 1:
            for name in SILENT:
                setattr(Tensor, name, _refusing(name))
            Tensor.__setitem__ = _assign_part


def allow() -> None:
    """Undo ``refuse``."""
    global _users
    _local.refused -= 1
    with _lock:
        _users -= 1
        if not _users:
            for name in (*SILENT, "__setitem__"):
                delattr(Tensor, name)  # what it inherits is there again

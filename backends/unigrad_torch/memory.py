"""Bytes held for backward: the storages made in a region of code and still alive at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unigrad.errors import UnsupportedError
from unigrad_torch.compiled import refuse_compiled


class _Meter:
    """Result: bytes of the storages that were alive at the end."""

    bytes: int = 0


class _Tracker(TorchDispatchMode):
    """See every tensor that goes into or comes out of an operation; weak references tell which storages live on."""

    def __init__(self, held: Sequence[Any]) -> None:
        super().__init__()
        self.older: dict[int, StorageWeakRef] = {}
        self.made: dict[int, StorageWeakRef] = {}
        for tensor in held:
            self.note(tensor, self.older)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self.note(value, self.older)
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                self.note(value, self.made)
        return result

    def note(self, tensor: Tensor, where: dict[int, StorageWeakRef]) -> None:
        """Remember the storages of a tensor not met before."""
        for storage in _storages(tensor):
            # the address of the storage's header is not used again while a weak reference to it exists
            key = storage._cdata
            if key not in self.older and key not in self.made:
                where[key] = StorageWeakRef(storage)


def _storages(tensor: Tensor) -> list[Any]:
    if torch.nn.parameter.is_lazy(tensor):
        return []
    if tensor.layout is torch.strided:
        return [tensor.untyped_storage()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices().untyped_storage(), tensor._values().untyped_storage()]
    raise UnsupportedError(f"the bytes of a tensor of layout {tensor.layout} cannot be counted")


@contextmanager
def measure(held: Sequence[Any]) -> Iterator[_Meter]:
    """Count the bytes of storages made inside the ``with`` and alive when it ends, ``held`` not counted."""
    refuse_compiled("counting bytes")
    meter = _Meter()
    with _Tracker(held) as tracker:
        yield meter
    for reference in tracker.made.values():
        storage = None if reference.expired() else torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is not None:
            meter.bytes += storage.nbytes()

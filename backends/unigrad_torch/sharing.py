"""Copies of gradients that share memory until one of the two is written: torch's copy-on-write storages.

A gradient that is only read, as an optimizer does, then costs no memory and no time. The operation is private; where it is
missing or does not do what is needed, gradients are copied at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_lazy_clone = getattr(torch, "_lazy_clone", None)


def _works() -> bool:
    """Whether writes to either side, also through NumPy, leave the other alone."""
    if _lazy_clone is None:
        return False
    try:
        source = torch.zeros(2)
        first, second, third = _lazy_clone(source), _lazy_clone(source), _lazy_clone(source)
        first.add_(1)
        second.numpy()[0] = 2
        source.add_(4)
        found = [tensor.tolist() for tensor in (source, first, second, third)]
    except (RuntimeError, TypeError):
        return False
    return found == [[4, 4], [1, 1], [2, 0], [0, 0]]


_SHARES = _works()


def shared(tensor: Any) -> Any | None:
    """Return such a copy of a tensor that no view or array of a user looks into; None where it must be copied at once."""
    if (
        _SHARES
        and type(tensor) is Tensor
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not torch._C._len_torch_function_stack()
    ):
        try:
            return _lazy_clone(tensor)
        except RuntimeError:  # memory that torch has not allocated itself
            return None
    return None

"""How often unigrad has written a tensor, and when: MindSpore counts no versions of what its optimizers write."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from mindspore import Parameter, Tensor, ops

from unigrad_mindspore.pynative import recorded

__all__ = ["next_number", "version", "written", "written_at"]

_COUNT = "_unigrad_writes"
_WHEN = "_unigrad_written_at"

_clock = Parameter(Tensor(0.0), name="unigrad_clock")


def version(tensor: Any) -> Hashable:
    """Return what changes when unigrad, an assignment or an in-place copy writes the tensor."""
    return (id(tensor), getattr(tensor, _COUNT, 0), tensor._version, tensor.data_ptr())


def written(tensor: Any) -> None:
    """Take note that the values of a tensor have just changed."""
    setattr(tensor, _COUNT, getattr(tensor, _COUNT, 0) + 1)
    setattr(tensor, _WHEN, next_number())


def written_at(tensor: Any) -> int:
    """Return the number of the first operation recorded after the last write; 0 if there was none."""
    found: int = getattr(tensor, _WHEN, 0)
    return found


def next_number() -> int:
    """Return a number above those of all operations recorded so far, and not above those of later ones."""
    with recorded():
        return int(ops.neg(_clock)._grad_node._sequence_nr())

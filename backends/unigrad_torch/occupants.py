"""Parameters back in the places that they had in the forward: a functional call, or a user, may have put others there since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor
from torch.nn import Parameter

from unigrad.protocols import Entry
from unigrad_torch.captures import Edge, edges
from unigrad_torch.marks import MARKED

__all__ = ["computed", "put_back"]

# Not those of fully_shard, which exchanges a layer's parameters itself, before each of its calls.
_PLAIN = {Tensor, Parameter, *MARKED}


@contextmanager
def put_back(places: Sequence[Entry]) -> Iterator[None]:
    """Put the parameters of the forward into their places, for as long as it is run again."""
    moved = []
    for entry in places:
        held = entry.owner._parameters
        now = held.get(entry.key)
        if now is not entry.tensor and type(now) in _PLAIN and type(entry.tensor) in _PLAIN:
            moved.append((held, entry, now))
            held[entry.key] = entry.tensor
    try:
        yield
    finally:
        for held, entry, now in moved:
            held[entry.key] = now


def computed(places: Sequence[Entry]) -> set[Edge]:
    """Return where parameters that were computed, as a functional call may be given, enter the graph."""
    return edges([entry.tensor for entry in places])

"""Stand-ins for the parameters of layers during a recompute: leaves of their own over the same memory.

A gradient that a recompute computes must not reach ``.grad`` of the parameters, where their hooks, and those of DataParallel, wait
for the gradient of the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unigrad.protocols import Entry
from unigrad_paddle.framework import RNNBase
from unigrad_paddle.leaves import know


class _Local(threading.local):
    def __init__(self) -> None:
        self.originals: dict[int, Any] = {}


_local = _Local()
_ABSENT = object()


def original(tensor: Any) -> Any:
    """Return the parameter that a stand-in stands for in this thread now, else the tensor itself."""
    return _local.originals.get(id(tensor), tensor)


def any_stand_in() -> bool:
    """Whether anything is a stand-in in this thread now."""
    return bool(_local.originals)


def stands_in(tensor: Any) -> bool:
    """Whether something is a stand-in in this thread now."""
    return id(tensor) in _local.originals


@dataclass(frozen=True)
class Place:
    """Where a layer holds a tensor, and the tensor."""

    owner: Any
    held: dict[str, Any]
    key: str
    tensor: Any


def occupants(places: Sequence[Entry]) -> list[Place]:
    """Return what the places of parameters hold now, the further places in recurrent layers too."""
    found = [(entry.owner, entry.key, entry.owner._parameters.get(entry.key)) for entry in places]
    recurrent = {id(owner): owner for owner, _, _ in found if isinstance(owner, RNNBase)}
    for owner in recurrent.values():
        for cell in owner.sublayers():
            found += [(cell, key, tensor) for key, tensor in cell._parameters.items()]
    return [Place(owner, owner._parameters, key, tensor) for owner, key, tensor in found if tensor is not None]


def graphs(buffers: Sequence[Entry]) -> list[Place]:
    """Return the buffers that need a gradient: what a hook of a layer has computed from parameters, as for a weight norm."""
    return [
        Place(entry.owner, entry.owner._buffers, entry.key, entry.tensor)
        for entry in buffers
        if entry.tensor is not None and not entry.tensor.stop_gradient and entry.key in entry.owner._buffers
    ]


@contextmanager
def stood_in(rows: Sequence[Place]) -> Iterator[dict[int, Any]]:
    """Put a stand-in into each place of a tensor that needs a gradient; gives them by the id of what they stand for."""
    made: dict[int, Any] = {}
    before: list[tuple[dict[str, Any], str, Any]] = []
    lists: list[tuple[list[Any], list[Any]]] = []
    originals = dict(_local.originals)
    try:
        for row in rows:
            tensor = row.tensor
            if tensor.stop_gradient:
                continue
            twin = made.get(id(tensor))
            if twin is None:
                twin = tensor.detach()
                twin.stop_gradient = False
                made[id(tensor)] = twin
                _local.originals[id(twin)] = original(tensor)
            before.append((row.held, row.key, row.held.get(row.key, _ABSENT)))
            row.held[row.key] = twin
        for owner in {id(row.owner): row.owner for row in rows if isinstance(row.owner, RNNBase)}.values():
            # the fused kernel takes its weights from a list of the layer's own
            weights = getattr(owner, "_all_weights", None)
            if weights is not None:
                lists.append((weights, list(weights)))
                weights[:] = [made.get(id(weight), weight) for weight in weights]
        know(made.values())
        yield made
    finally:
        for weights, held in lists:
            weights[:] = held
        for place, key, held in reversed(before):
            if held is _ABSENT:
                place.pop(key, None)
            else:
                place[key] = held
        _local.originals.clear()
        _local.originals.update(originals)

"""Stand-ins for the parameters of layers during a recompute: leaves of their own over the same memory.

A gradient that a recompute computes must not reach ``.grad`` of the parameters, where their hooks, and those of DataParallel, wait
for the gradient of the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from unigrad.protocols import Entry
from unigrad_paddle.framework import RNNBase
from unigrad_paddle.leaves import know


class _Local(threading.local):
    def __init__(self) -> None:
        self.originals: dict[int, Any] = {}


_local = _Local()


def original(tensor: Any) -> Any:
    """Return the parameter that a stand-in stands for in this thread now, else the tensor itself."""
    return _local.originals.get(id(tensor), tensor)


def any_stand_in() -> bool:
    """Whether anything is a stand-in in this thread now."""
    return bool(_local.originals)


def stands_in(tensor: Any) -> bool:
    """Whether something is a stand-in in this thread now."""
    return id(tensor) in _local.originals


def occupants(places: Sequence[Entry]) -> list[tuple[Any, str, Any]]:
    """Return owner, key and present tensor of each place, of the further places in recurrent layers too."""
    found = [(entry.owner, entry.key, entry.owner._parameters.get(entry.key)) for entry in places]
    recurrent = {id(owner): owner for owner, _, _ in found if isinstance(owner, RNNBase)}
    for owner in recurrent.values():
        for cell in owner.sublayers():
            found += [(cell, key, tensor) for key, tensor in cell._parameters.items()]
    return [row for row in found if row[2] is not None]


@contextmanager
def stood_in(rows: Sequence[tuple[Any, str, Any]]) -> Iterator[dict[int, Any]]:
    """Put a stand-in into each place of a trainable tensor; gives them by the id of what they stand for."""
    made: dict[int, Any] = {}
    before: list[tuple[dict[str, Any], str, Any]] = []
    lists: list[tuple[list[Any], list[Any]]] = []
    originals = dict(_local.originals)
    try:
        for owner, key, tensor in rows:
            if tensor.stop_gradient:
                continue
            twin = made.get(id(tensor))
            if twin is None:
                twin = tensor.detach()
                twin.stop_gradient = False
                made[id(tensor)] = twin
                _local.originals[id(twin)] = original(tensor)
            before.append((owner._parameters, key, owner._parameters[key]))
            owner._parameters[key] = twin
        for owner in {id(owner): owner for owner, _, _ in rows if isinstance(owner, RNNBase)}.values():
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
        for parameters, key, held in reversed(before):
            parameters[key] = held
        _local.originals.clear()
        _local.originals.update(originals)

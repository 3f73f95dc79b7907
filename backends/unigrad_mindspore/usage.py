"""A thread's region: recording is on, and leaves that recorded operations use are noted."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import mindspore

from unigrad.errors import RecordingLostError, UnsupportedError
from unigrad_mindspore import dispatch, in_place
from unigrad_mindspore.kernels import explained, settle
from unigrad_mindspore.leaves import known, remember
from unigrad_mindspore.pynative import grad_flag, precisions, recording_allowed, repair_precisions, set_flags

__all__ = ["Region", "leaf_of", "refuse_graph_mode", "require_recording"]


class _Local(threading.local):
    region: Region | None = None


_local = _Local()


class Region:
    """Records in this thread until it is closed."""

    def __init__(self) -> None:
        refuse_graph_mode("a collector")
        settle()  # what fails later then belongs to the collector
        self._before = grad_flag(), recording_allowed()
        self._precisions = len(precisions())
        self._waiting: dict[int, Any] = {}
        self._told: list[Any] = []
        self._strangers: dict[int, Any] = {}
        self.lost = False
        with explained():
            dispatch.enter()
        set_flags(True, True)
        in_place.refuse()
        _local.region = self

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Take note of the next use of each of these leaves; layers without parameters there are none."""
        for leaf in leaves:
            number = remember(leaf)
            if number is not None:
                self._waiting[number] = leaf
        dispatch.observe(self._note if self._waiting else None)

    def _note(self, node: Any) -> None:
        leaf = self._waiting.pop(node._unique_id(), None)
        if leaf is not None:
            self._told.append(leaf)
            if not self._waiting:
                dispatch.observe(None)

    def used(self) -> list[Any]:
        """Return the leaves used since the last call."""
        told, self._told = self._told, []
        return told

    def stranger(self, node: Any) -> Any:
        """Return what stands for a leaf that nobody has told of: its node, the same object each time."""
        return self._strangers.setdefault(node._unique_id(), node)

    def close(self) -> None:
        """Stop."""
        _local.region = None
        dispatch.observe(None)
        set_flags(*self._before)
        if len(precisions()) > self._precisions:
            repair_precisions(self._precisions)
        in_place.allow()
        with explained():
            dispatch.leave()


def leaf_of(node: Any) -> Any:
    """Return the leaf of a node, or what stands for it."""
    leaf = known(node)
    region = _local.region
    return leaf if leaf is not None else node if region is None else region.stranger(node)


def refuse_graph_mode(what: str) -> None:
    """Raise ``UnsupportedError`` where Cells run compiled, so that nothing is recorded."""
    if mindspore.get_context("mode") != mindspore.PYNATIVE_MODE:
        raise UnsupportedError(
            f"{what} works in PYNATIVE_MODE only: in GRAPH_MODE a Cell runs compiled, and nothing of it is recorded. Call "
            "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) first"
        )


def require_recording() -> None:
    """Raise ``RecordingLostError`` if something has switched recording off since the region was opened."""
    region = _local.region
    if region is None or (not region.lost and grad_flag()):
        return
    region.lost = True
    raise RecordingLostError(
        "recording was switched off while a collector was open, so that gradients would be missing: a native gradient call "
        "(mindspore.grad, value_and_grad, vjp, a Cell after set_grad()) does so. Make it before opening the collector or after "
        "leaving it, and open the collector anew"
    )

"""Errors of MindSpore's that say little or come later, raised where they belong and with what can be done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from unigrad.errors import GraphReleasedError, UnsupportedError
from unigrad_mindspore.pynative import raise_pending

__all__ = ["FREED", "explained", "settle"]

_NO_KERNEL = (
    re.compile(r"The kernel (\w+) unregistered"),
    re.compile(r"Create kernelmod for op (\w+) failed"),
    re.compile(r"Select CPU operator\[(\w+)\] fail"),
    re.compile(r"Unsupported op \[(\w+)\]"),
)
_NO_TOP_CELL = "pointer[top_cell_] is null"
FREED = "ctx has been freed"
"""Part of the error for what lies on a function of the user's own whose graph is released."""


def settle() -> None:
    """Wait for what runs, so that an error of it is raised here and not at some later operation."""
    with explained():
        raise_pending()


@contextmanager
def explained() -> Iterator[None]:
    """Turn MindSpore's errors for what it can't do here into ones that say what to do."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        text = str(error)
        if _NO_TOP_CELL in text:
            raise UnsupportedError(
                "a Cell with a bprop of its own, one given to Cell.recompute(), or mindspore.recompute was called, which MindSpore runs "
                "inside its own gradient functions only; write the one as a _Function, and use unigrad.checkpoint for the others"
            ) from error
        if FREED in text:
            raise GraphReleasedError(
                "a tensor lies on a graph that was released, at a function of the user's own, by an earlier backward; pass "
                "retain_graph=True to that one, or run the forward again"
            ) from error
        found = next((match for pattern in _NO_KERNEL if (match := pattern.search(text))), None)
        if found is None:
            raise
        raise UnsupportedError(
            f"mindspore has no kernel on the CPU for the operation {found[1]} with these arguments (layers and functions of "
            "mindspore.mint, and those that write in place, often have none); use the one of mindspore.nn or mindspore.ops"
        ) from error

"""Errors of operations that MindSpore runs later, raised where they belong and with what can be done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from unigrad.errors import UnsupportedError
from unigrad_mindspore.pynative import raise_pending

__all__ = ["explained", "settle"]

_NO_KERNEL = (
    re.compile(r"The kernel (\w+) unregistered"),
    re.compile(r"Create kernelmod for op (\w+) failed"),
    re.compile(r"Select CPU operator\[(\w+)\] fail"),
    re.compile(r"Unsupported op \[(\w+)\]"),
)


def settle() -> None:
    """Wait for what runs, so that an error of it is raised here and not at some later operation."""
    with explained():
        raise_pending()


@contextmanager
def explained() -> Iterator[None]:
    """Turn MindSpore's error for an operation without a kernel into one that says what to do."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        found = next((match for pattern in _NO_KERNEL if (match := pattern.search(str(error)))), None)
        if found is None:
            raise
        raise UnsupportedError(
            f"mindspore has no kernel on the CPU for the operation {found[1]} with these arguments (layers and functions of "
            "mindspore.mint, and those that write in place, often have none); use the one of mindspore.nn or mindspore.ops"
        ) from error

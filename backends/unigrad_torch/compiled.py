"""Notice that the caller runs inside ``torch.compile``, or is read by it, where nothing here works."""

from __future__ import annotations

import sys

import torch
from torch.compiler import is_compiling

from unigrad.errors import UnsupportedError

_HELPERS = (
    "block",
    "buffers",
    "captures",
    "frozen",
    "joined",
    "plugins",
    "random",
    "region",
    "table",
    "tree",
    "wrapping",
)
"""Modules of the core that the compiler is not to read: what it would compile of them depends on what they remember."""
_told: list[bool] = []


class _RefusedInTrace(UnsupportedError, AssertionError):
    """The compiler lets few kinds of errors through as they are; an ``AssertionError`` is one of them."""


_RefusedInTrace.__name__ = _RefusedInTrace.__qualname__ = UnsupportedError.__name__


def keep_out() -> None:
    """Have the compiler leave the core to Python, where a call without recording goes through it."""
    if not _told and "torch._dynamo" in sys.modules:
        _told.append(True)
        for name in _HELPERS:
            torch._dynamo.trace_rules.add(f"unigrad.{name}")


def refuse_compiled(what: str) -> None:
    """Raise ``UnsupportedError`` inside ``torch.compile``.

    The compiler leaves a frame that it cannot compile to Python and goes on with the next one, so that its own flag is off there;
    that the frames of this thread are given to it is what tells.
    """
    if "torch._dynamo" not in sys.modules:
        return
    if is_compiling():
        raise _RefusedInTrace(_text(what))
    if torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False):
        raise UnsupportedError(_text(what))


def _text(what: str) -> str:
    return f"{what} does not work inside torch.compile; use it around the call of the compiled function"

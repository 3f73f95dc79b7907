"""Notice that the caller runs inside ``torch.compile``, where nothing here works."""

from __future__ import annotations

import sys

import torch
from torch.compiler import is_compiling

from unigrad.errors import UnsupportedError

_OURS = ("unigrad",)  # not this package: marked leaves of a compiled model are traced through ``marks``
_told: list[bool] = []


def refuse_compiled(what: str) -> None:
    """Raise ``UnsupportedError`` inside ``torch.compile``.

    The compiler leaves a frame that it cannot compile to Python and goes on with the next one, so that its own flag is off there;
    that the frames of this thread are given to it is what tells.
    """
    if "torch._dynamo" not in sys.modules:
        return
    if is_compiling():
        raise UnsupportedError(_text(what))
    if not _told:
        # it would trace our own frames one by one, and then fail in ways of its own
        for name in _OURS:
            torch._dynamo.trace_rules.add(name)
        _told.append(True)
    if torch._C._dynamo.eval_frame.get_eval_frame_callback() not in (None, False):
        raise UnsupportedError(_text(what))


def _text(what: str) -> str:
    return f"{what} does not work inside torch.compile; use it around the call of the compiled function"

"""Refuse by name inside a compiler that reads Python functions, before it reads into this library and fails in ways of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from unigrad.errors import UnsupportedError
from unigrad.plugins import backends_in_use
from unigrad.protocols import Capability

__all__ = ["called_not_read", "refuse_traced"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def called_not_read(function: _Function) -> _Function:
    """Mark a function that a tracing compiler calls, as it is, at the time of tracing.

    It is what ``torch.compiler.assume_constant_result`` sets. The mark is needed before any backend is loaded, and costs nothing
    where there is no such compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@called_not_read
def refuse_traced(what: str, recorded_only: bool = False) -> None:
    """Raise ``UnsupportedError`` if a compiler reads the caller instead of running it, and its backend works in no compiled step.

    Parameters
    ----------
    what
        What does not work there, e.g. ``"a collector"``.
    recorded_only
        Whether it works where nothing is recorded: there a checkpoint is the plain call.
    """
    # Python runs the caller: a backend says by itself what it can't do, in ``open_region`` and ``run``.
    if sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] == "unigrad":
        return
    for backend in backends_in_use():
        if Capability.COMPILED_STEP in backend.spec.capabilities or (recorded_only and not backend.tape.is_recording()):
            continue
        try:
            backend.tape.close_region(backend.tape.open_region())
        except UnsupportedError as error:
            raise type(error)(f"{what} is refused here: {error}") from None

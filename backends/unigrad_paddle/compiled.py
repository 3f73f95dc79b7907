"""Refuse what cannot be done inside a function that Paddle compiles."""

from __future__ import annotations

from typing import NoReturn

import paddle

from unigrad.errors import UnsupportedError


def refuse_compiled(what: str) -> None:
    """Raise ``UnsupportedError`` while a function is being compiled, and in static mode."""
    if not paddle.in_dynamic_mode():
        refuse(what)


def refuse(what: str) -> NoReturn:
    """Raise ``UnsupportedError``."""
    raise UnsupportedError(
        f"{what} does not work inside a compiled step (paddle.jit.to_static, or static mode); open it around the compiled call, or set "
        "enabled = False on what is checkpointed"
    )

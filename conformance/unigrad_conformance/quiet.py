"""Load a backend for a command, whose output is not to be mixed with what a framework logs."""

from __future__ import annotations

import os

from unigrad.declarations import declaration
from unigrad.plugins import get_backend
from unigrad.protocols import Backend

__all__ = ["load"]


def load(name: str) -> Backend:
    """Return the backend, as ``unigrad.get_backend`` does; variables that it declares as ``quiet`` are set unless the caller set them."""
    for variable, value in declaration(name).quiet.items():
        os.environ.setdefault(variable, value)
    return get_backend(name)

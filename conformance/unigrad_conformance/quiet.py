"""Load a backend for a command, whose output is not to be mixed with what a framework logs."""

from __future__ import annotations

import logging
import os
import warnings

from unigrad.declarations import declaration
from unigrad.plugins import get_backend
from unigrad.protocols import Backend

__all__ = ["load"]


def load(name: str) -> Backend:
    """Return the backend, as ``unigrad.get_backend`` does; variables that it declares as ``quiet`` are set unless the caller set them.

    Warnings of the import are the framework's own affair, and what it does to the root logger is undone.
    """
    for variable, value in declaration(name).quiet.items():
        os.environ.setdefault(variable, value)
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return get_backend(name)
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers

"""The one pluggy hook by which a backend declares itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from unigrad.protocols import BackendSpec

hookspec = pluggy.HookspecMarker("unigrad")
hookimpl = pluggy.HookimplMarker("unigrad")


@hookspec
def unigrad_backend() -> BackendSpec:  # type: ignore[empty-body]  # a hook specification has no body
    """Return the declaration of the backend; must not import the framework."""

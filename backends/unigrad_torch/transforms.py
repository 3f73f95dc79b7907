"""Notice that the caller runs inside a ``torch.func`` transform, whose tensors hang on a graph of its own."""

from __future__ import annotations

import torch

from unigrad.errors import UnsupportedError

__all__ = ["refuse_transformed"]

# The question that torch.autograd.backward itself asks; a torch without it fails here, by name, as the backend is loaded.
_is_active = torch._C._are_functorch_transforms_active


def refuse_transformed(what: str) -> None:
    """Raise ``UnsupportedError`` inside of ``torch.func.grad``, ``vmap``, ``jvp`` and the like."""
    if _is_active():
        raise UnsupportedError(
            f"{what} does not work inside of torch.func transforms (grad, vmap, jvp, functionalize): a loss there belongs to the "
            "transform and hangs on no parameter; use it outside of the transformed function"
        )

"""Notice that the caller runs inside a ``torch.func`` transform, whose tensors hang on a graph of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C import _functorch

from unigrad.errors import UnsupportedError

__all__ = ["refuse_mapped", "refuse_transformed", "told_of_transforms"]

# What torch.autograd.backward itself asks, and the stack behind it; a torch without them fails here, by name, as the backend is loaded.
_is_active = torch._C._are_functorch_transforms_active
_stack = _functorch.get_interpreter_stack
_VMAP = _functorch.TransformType.Vmap
_NO_HOOKS = "support saved tensor hooks"


def refuse_transformed(what: str) -> None:
    """Raise ``UnsupportedError`` inside of ``torch.func.grad``, ``vmap``, ``jvp`` and the like."""
    if _is_active():
        raise UnsupportedError(
            f"{what} does not work inside of torch.func transforms (grad, vmap, jvp, functionalize): a loss there belongs to the "
            "transform and hangs on no parameter; use it outside of the transformed function"
        )


def refuse_mapped(what: str) -> None:
    """Raise ``UnsupportedError`` inside of ``torch.vmap``, whose tensors have no values that could be compared."""
    if _is_active() and any(level.key() == _VMAP for level in _stack() or ()):
        raise UnsupportedError(
            f"{what} does not work inside of torch.vmap, whose tensors have no values of their own that a recompute could be compared "
            "with; map inside of the checkpointed function, or give the samples as one batch"
        )


@contextmanager
def told_of_transforms() -> Iterator[None]:
    """Say what torch means that refuses a transform inside of a checkpointed region."""
    try:
        yield
    except RuntimeError as error:
        if _NO_HOOKS not in str(error):
            raise
        raise UnsupportedError(
            "torch.func.grad, vjp, jacrev and hessian do not work inside a checkpointed function, whose inner values are recomputed by "
            "hooks on saved tensors; take the inner gradient by torch.autograd.grad(..., create_graph=True)"
        ) from error

"""Which engine serves a model; what cannot be served is refused by name."""

from __future__ import annotations

import weakref
from typing import Any

import paddle

from unigrad.errors import UnsupportedError
from unigrad.protocols import Structure
from unigrad_paddle.arrays import half, is_half


def engine(model: Any, structure: Structure) -> str:
    """Name of the engine that serves this (not unwrapped) model.

    Paddle's own engine serves all; ``"native"`` tells that other processes take part.
    """
    token = structure.token
    if token is not None and token.sparse is not None:
        raise UnsupportedError(
            f"the embedding {token.sparse or 'itself'!r} has sparse=True; its gradient would be rows with indices that Paddle neither "
            "copies nor sums as a tensor. Make it with sparse=False"
        )
    if token is not None and token.half is not None and is_half(token.half):
        raise UnsupportedError(half(token.half))
    wrapper = model if isinstance(model, paddle.DataParallel) else None
    if wrapper is None or paddle.distributed.get_world_size() < 2:
        return "pure"
    for parameter in wrapper.parameters():
        parameter._unigrad_parallel = weakref.ref(wrapper)
    return "native"


def parallel(leaf: Any) -> Any | None:
    """Return the DataParallel layer that exchanges the gradient of a leaf between processes, None if there is none."""
    reference = getattr(leaf, "_unigrad_parallel", None)
    return None if reference is None else reference()

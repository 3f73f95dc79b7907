"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

from unigrad_numpy.ops.arithmetic import matmul, mul
from unigrad_numpy.ops.indexing import where
from unigrad_numpy.ops.random import dropout
from unigrad_numpy.ops.reductions import softmax
from unigrad_numpy.ops.shapes import swapaxes
from unigrad_numpy.tensor import Tensor

__all__ = ["attention"]


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Any = None, rate: float = 0.0) -> Tensor:
    """Mean of values, weighted by how well queries match keys.

    Parameters
    ----------
    query, key, value
        Shapes ``(..., queries, features)``, ``(..., keys, features)``, ``(..., keys, values)``.
    mask
        Bool, broadcast to ``(..., queries, keys)``; keys where it is False are not looked at.
    rate
        Dropout of the weights.
    """
    scores = mul(matmul(query, swapaxes(key, -1, -2)), 1 / math.sqrt(query.shape[-1]))
    if mask is not None:
        scores = where(mask, scores, float("-inf"))
    return matmul(dropout(softmax(scores), rate), value)

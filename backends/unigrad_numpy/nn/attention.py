"""Multi-head attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy import ops
from unigrad_numpy.nn import init
from unigrad_numpy.nn.dense import Dense
from unigrad_numpy.nn.module import Module
from unigrad_numpy.ops.base import as_tensor
from unigrad_numpy.tensor import Tensor

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention of several heads with one joint projection of queries, keys and values.

    Parameters
    ----------
    features
        Length of the last axis, a multiple of ``heads``.
    heads
        Number of heads.
    rate
        Dropout of the weights in training.
    bias
        Whether the projections have biases.
    dtype
        float32 or float64.
    """

    def __init__(
        self, features: int, heads: int, rate: float = 0.0, bias: bool = True, dtype: Any = np.float32
    ) -> None:
        super().__init__()
        if features % heads:
            raise ValueError(f"{features} features cannot be shared among {heads} heads")
        self.heads, self.rate = heads, rate
        self.in_proj_weight = init.xavier_uniform((3 * features, features), dtype)
        self.register_parameter("in_proj_bias", init.full((3 * features,), 0, dtype) if bias else None)
        self.out_proj = Dense(features, features, bias, dtype)
        if bias:
            self.out_proj.bias.assign(0.0)

    def forward(self, query: Any, key: Any = None, value: Any = None, mask: Any = None) -> Tensor:
        """Attend.

        Parameters
        ----------
        query
            Shape ``(batch, queries, features)``.
        key, value
            Shape ``(batch, keys, features)``; ``query`` by default.
        mask
            Bool, broadcast to ``(batch, heads, queries, keys)``; keys where it is False are not looked at.

        Returns
        -------
        Tensor
            Shape ``(batch, queries, features)``.
        """
        query = as_tensor(query)
        key = query if key is None else key
        value = key if value is None else value
        parts = ops.split(self.in_proj_weight, 3)
        biases = [None] * 3 if self.in_proj_bias is None else ops.split(self.in_proj_bias, 3)
        q, k, v = (
            self._heads(ops.linear(x, weight, bias))
            for x, weight, bias in zip((query, key, value), parts, biases, strict=True)
        )
        mixed = ops.attention(q, k, v, mask, self.rate if self.training else 0.0)
        return self.out_proj(mixed.transpose(0, 2, 1, 3).reshape(query.shape))

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, features = x.shape
        return x.reshape(batch, length, self.heads, features // self.heads).transpose(0, 2, 1, 3)

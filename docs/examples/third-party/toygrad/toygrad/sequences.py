"""Layers over sequences, ``(batch, steps, features)``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from toygrad import functions
from toygrad.layers import Dense, Module
from toygrad.tensor import Parameter, Tensor


class Recurrent(Module):
    """A cell applied to one step after the other; subclasses define ``cell``.

    Weights are those of all gates, one above the other; biases come in pairs or not at all.
    """

    gates: int

    def __init__(self, input_weight: Any, hidden_weight: Any, input_bias: Any = None, hidden_bias: Any = None) -> None:
        self.input_weight = Parameter(input_weight)
        self.hidden_weight = Parameter(hidden_weight)
        if input_bias is not None:
            self.input_bias = Parameter(input_bias)
            self.hidden_bias = Parameter(hidden_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all steps."""
        zeros = Tensor(np.zeros((x.shape[0], self.hidden_weight.shape[1]), x.data.dtype))
        carried: tuple[Tensor, ...] = (zeros, zeros)
        outputs = []
        for step in range(x.shape[1]):
            carried = self.cell(self._sums("input", x[:, step]), self._sums("hidden", carried[0]), carried)
            outputs.append(functions.reshape(carried[0], (x.shape[0], 1, -1)))
        return functions.join(outputs, 1)

    def _sums(self, kind: str, x: Tensor) -> list[Tensor]:
        y = functions.matmul(x, functions.transpose(getattr(self, f"{kind}_weight"), (1, 0)))
        if hasattr(self, "input_bias"):
            y = y + getattr(self, f"{kind}_bias")
        return functions.split(y, self.gates, 1)

    def cell(self, given: list[Tensor], hidden: list[Tensor], carried: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what is carried to the next step, the output first."""
        raise NotImplementedError


class LSTM(Recurrent):
    """Long short-term memory; gates: input, forget, candidate, output."""

    gates = 4

    def cell(self, given: list[Tensor], hidden: list[Tensor], carried: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return output and memory."""
        let_in, keep, new, let_out = (a + b for a, b in zip(given, hidden, strict=True))
        memory = functions.sigmoid(keep) * carried[1] + functions.sigmoid(let_in) * functions.tanh(new)
        return functions.sigmoid(let_out) * functions.tanh(memory), memory


class GRU(Recurrent):
    """Gated recurrent unit; gates: reset, update, candidate."""

    gates = 3

    def cell(self, given: list[Tensor], hidden: list[Tensor], carried: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the output."""
        reset, update = (functions.sigmoid(a + b) for a, b in zip(given[:2], hidden[:2], strict=True))
        new = functions.tanh(given[2] + reset * hidden[2])
        return ((1.0 - update) * new + update * carried[0],)


class Attention(Module):
    """Attention of a sequence with itself in several heads; ``in_proj_weight`` stacks query, key and value."""

    def __init__(self, heads: int, in_proj_weight: Any, in_proj_bias: Any, weight: Any, bias: Any) -> None:
        self.heads = heads
        self.in_proj_weight = Parameter(in_proj_weight)
        self.in_proj_bias = Parameter(in_proj_bias)
        self.out_proj = Dense(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        batch, steps, features = x.shape
        width = features // self.heads
        joint = functions.matmul(x, functions.transpose(self.in_proj_weight, (1, 0))) + self.in_proj_bias
        split = functions.transpose(functions.reshape(joint, (batch, steps, 3, self.heads, width)), (2, 0, 3, 1, 4))
        query, key, value = split[0], split[1], split[2]
        scores = functions.matmul(query, functions.transpose(key, (0, 1, 3, 2))) / math.sqrt(width)
        mixed = functions.matmul(functions.softmax(scores, -1), value)
        return self.out_proj(functions.reshape(functions.transpose(mixed, (0, 2, 1, 3)), (batch, steps, features)))

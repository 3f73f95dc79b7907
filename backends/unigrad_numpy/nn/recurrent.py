"""Recurrent cells and layers; gates in the order ``i f g o`` and ``r z n``, two biases."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy import ops
from unigrad_numpy.nn import init
from unigrad_numpy.nn.module import Module
from unigrad_numpy.ops.base import as_tensor
from unigrad_numpy.tensor import Tensor

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell"]


def lstm_step(x: Tensor, state: Any, weights: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One step of an LSTM.

    Parameters
    ----------
    x
        Shape ``(batch, inputs)``.
    state
        Hidden and cell state, each ``(batch, units)``.
    weights
        Input weight, hidden weight, input bias, hidden bias.

    Returns
    -------
    tuple
        The output, and the new state.
    """
    hidden, cell = state
    input_weight, hidden_weight, input_bias, hidden_bias = weights
    gates = ops.linear(x, input_weight, input_bias) + ops.linear(hidden, hidden_weight, hidden_bias)
    i, f, g, o = ops.split(gates, 4, axis=-1)
    cell = ops.sigmoid(f) * cell + ops.sigmoid(i) * ops.tanh(g)
    hidden = ops.sigmoid(o) * ops.tanh(cell)
    return hidden, (hidden, cell)


def gru_step(x: Tensor, state: Any, weights: Any) -> tuple[Tensor, tuple[Tensor]]:
    """One step of a GRU that resets after the hidden product; as :func:`lstm_step`, without a cell state."""
    (hidden,) = state
    input_weight, hidden_weight, input_bias, hidden_bias = weights
    from_input = ops.split(ops.linear(x, input_weight, input_bias), 3, axis=-1)
    from_hidden = ops.split(ops.linear(hidden, hidden_weight, hidden_bias), 3, axis=-1)
    r = ops.sigmoid(from_input[0] + from_hidden[0])
    z = ops.sigmoid(from_input[1] + from_hidden[1])
    n = ops.tanh(from_input[2] + r * from_hidden[2])
    hidden = (1 - z) * n + z * hidden
    return hidden, (hidden,)


class _Recurrent(Module):
    """Parameters and zero states of a recurrent layer.

    Parameters
    ----------
    inputs, units
        Lengths of the last axis before and after.
    bias
        Whether there are the two biases.
    dtype
        float32 or float64.
    """

    gates = 0
    states = 0
    suffix = ""
    step: Any

    def __init__(self, inputs: int, units: int, bias: bool = True, dtype: Any = np.float32) -> None:
        super().__init__()
        self.units = units
        rows = self.gates * units
        for name, shape in (
            ("weight_ih", (rows, inputs)),
            ("weight_hh", (rows, units)),
            ("bias_ih", (rows,)),
            ("bias_hh", (rows,)),
        ):
            value = init.fan_in_uniform(shape, units, dtype) if bias or name.startswith("weight") else None
            self.register_parameter(name + self.suffix, value)

    def weights(self) -> tuple[Any, ...]:
        """Return input weight, hidden weight, input bias, hidden bias."""
        return tuple(getattr(self, name + self.suffix) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))

    def zero_state(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return states of zeros for a batch."""
        return tuple(Tensor(np.zeros((x.shape[0], self.units), x.dtype)) for _ in range(self.states))


class _Cell(_Recurrent):
    def forward(self, x: Any, state: Any = None) -> Any:
        """Do one step: ``(batch, inputs)`` to the new hidden state ``(batch, units)``, for LSTM ``(hidden, cell)``."""
        x = as_tensor(x)
        state = self.zero_state(x) if state is None else state if isinstance(state, tuple) else (state,)
        _, state = type(self).step(x, state, self.weights())
        return state if len(state) > 1 else state[0]


class _Layer(_Recurrent):
    suffix = "_l0"

    def forward(self, x: Any, state: Any = None) -> tuple[Tensor, Any]:
        """Step through time.

        Parameters
        ----------
        x
            Shape ``(batch, time, inputs)``.
        state
            First state, zeros by default.

        Returns
        -------
        tuple
            Outputs ``(batch, time, units)``, and the last state.
        """
        x = as_tensor(x)
        state = self.zero_state(x) if state is None else state if isinstance(state, tuple) else (state,)
        weights = self.weights()
        outputs = []
        for time in range(x.shape[1]):
            output, state = type(self).step(x[:, time], state, weights)
            outputs.append(output)
        return ops.stack(outputs, axis=1), state if len(state) > 1 else state[0]


class LSTMCell(_Cell):
    """One step of a long short-term memory; ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``."""

    gates, states, step = 4, 2, staticmethod(lstm_step)


class GRUCell(_Cell):
    """One step of a gated recurrent unit; ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``."""

    gates, states, step = 3, 1, staticmethod(gru_step)


class LSTM(_Layer):
    """A long short-term memory over ``(batch, time, inputs)``; ``weight_ih_l0`` and so on."""

    gates, states, step = 4, 2, staticmethod(lstm_step)


class GRU(_Layer):
    """A gated recurrent unit over ``(batch, time, inputs)``; ``weight_ih_l0`` and so on."""

    gates, states, step = 3, 1, staticmethod(gru_step)

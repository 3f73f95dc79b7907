"""The suite's native optimizers: MindSpore's own, and for float64, which its kernels lack, ones written as its manual shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.experimental import optim

from unigrad_mindspore.arrays import dtype


class WideSGD(optim.Optimizer):
    """Stochastic gradient descent of plain operations, in the dtype of the parameters."""

    def __init__(self, params: Any, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.settings = momentum, weight_decay, lr
        self.accum = self.parameters.clone(prefix="accum", init="zeros")

    def construct(self, gradients: Any) -> bool:
        """Do one step."""
        momentum, decay, rate = map(_exact, self.settings)
        for parameter, gradient, accum in zip(self.parameters, gradients, self.accum, strict=True):
            ops.assign(accum, accum * momentum + gradient + parameter * decay)
            ops.assign(parameter, parameter - accum * rate)
        return True


class WideAdamW(optim.Optimizer):
    """AdamW of plain operations, in the dtype of the parameters."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.settings = lr, weight_decay
        self.exp_avg = self.parameters.clone(prefix="exp_avg", init="zeros")
        self.exp_avg_sq = self.parameters.clone(prefix="exp_avg_sq", init="zeros")
        self.state_step = Parameter(Tensor(np.zeros(1)), name="state_step")

    def construct(self, gradients: Any) -> bool:
        """Do one step."""
        self.state_step.set_data(self.state_step + 1.0)
        step, (rate, decay) = float(self.state_step.asnumpy()[0]), self.settings
        for parameter, gradient, mean, square in zip(
            self.parameters, gradients, self.exp_avg, self.exp_avg_sq, strict=True
        ):
            ops.assign(mean, mean * _exact(0.9) + gradient * _exact(1 - 0.9))
            ops.assign(square, square * _exact(0.999) + gradient * gradient * _exact(1 - 0.999))
            scale = ops.sqrt(square / _exact(1 - 0.999**step)) + _exact(1e-8)
            kept = parameter * _exact(1 - rate * decay)
            ops.assign(parameter, kept - mean / _exact(1 - 0.9**step) / scale * _exact(rate))
        return True


def _exact(number: float) -> Any:
    """Return a number as a tensor: MindSpore rounds a Python number that meets a tensor to float32."""
    return Tensor(np.float64(number))


def _wide(parameters: Any) -> bool:
    return any(dtype(parameter) == "float64" for parameter in parameters)


def make_sgd(parameters: Any, rate: float, momentum: float, decay: float) -> Any:
    """Return stochastic gradient descent for the parameters."""
    if _wide(parameters):
        return WideSGD(parameters, rate, momentum, decay)
    return nn.SGD(parameters, learning_rate=rate, momentum=momentum, weight_decay=decay)


def make_adamw(parameters: Any, rate: float, decay: float) -> Any:
    """Return AdamW for the parameters."""
    if _wide(parameters):
        return WideAdamW(parameters, rate, decay)
    return optim.AdamW(parameters, lr=rate, weight_decay=decay)

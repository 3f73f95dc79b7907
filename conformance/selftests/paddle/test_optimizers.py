"""Paddle: a model converted after a step of its optimizer (clauses R4, G18)."""

import numpy as np
import paddle
import pytest
from paddle import nn

import unigrad
from unigrad.errors import UnsupportedError


def test_a_model_converted_after_a_step_moves_nothing():
    block = unigrad.wrap(nn.Linear(2, 1))
    optimizer = unigrad.Optimizer(block, lambda parameters: paddle.optimizer.AdamW(1.0, parameters=parameters))

    def step(dtype):
        with unigrad.GradientCollector(block) as collector:
            collector.backward(block(paddle.ones([1, 2], dtype)).sum())
            collector.apply(optimizer)

    step("float32")
    block.native.to(dtype="float64")
    before = block.state()
    with pytest.raises(UnsupportedError, match=r"'weight' was converted from float32 to float64.*make a new Optimizer"):
        step("float64")
    assert all(np.array_equal(before[name], value) for name, value in block.state().items())

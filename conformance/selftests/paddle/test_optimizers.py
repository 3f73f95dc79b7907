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


@pytest.mark.filterwarnings("ignore:There are some unused values in state_dict")  # Paddle's, of its own warm-up's state
def test_a_schedule_around_another_one_is_saved_with_it():
    """D2: the state of a warm-up holds that of the schedule that follows."""
    rates = paddle.optimizer.lr

    def made():
        block = unigrad.wrap(nn.Linear(4, 3))
        schedule = rates.LinearWarmup(rates.CosineAnnealingDecay(0.1, 10), 2, 0.0, 0.1)
        return block, unigrad.Optimizer(block, lambda parameters: paddle.optimizer.SGD(schedule, parameters)), schedule

    block, optimizer, schedule = made()
    with unigrad.GradientCollector(block) as collector:
        collector.backward((block(paddle.ones([2, 4])) ** 2).sum())
        collector.apply(optimizer)
    for _ in range(4):
        schedule.step()
    _, other, resumed = made()
    other.load_state(optimizer.state())
    for _ in range(3):
        assert (resumed.last_epoch, resumed()) == (schedule.last_epoch, schedule())
        assert resumed.state_dict() == schedule.state_dict()
        schedule.step()
        resumed.step()

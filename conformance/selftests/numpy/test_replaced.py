"""Optimizers of a block whose parameters are replaced (R4, D2)."""

import numpy as np
import pytest
from unigrad_numpy import Parameter, Tensor, nn, optim

import unigrad

X = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")


def model():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))


def step(block, optimizer):
    with unigrad.GradientCollector(block) as collector:
        collector.backward(block(Tensor(X)).sum())
        collector.apply(optimizer)


def made(block):
    return unigrad.Optimizer(block, lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9))


def test_a_saved_state_is_that_of_the_parameters_which_the_block_has_now():
    first = unigrad.wrap(model())
    optimizer = made(first)
    step(first, optimizer)
    first.native[0].weight = Parameter(np.zeros((3, 3), "float32"))
    step(first, optimizer)
    assert optimizer.served.count("0.weight") == 1
    second = unigrad.wrap(model())
    second.load_state(first.state())
    resumed = made(second)
    resumed.load_state(optimizer.state())
    for _ in range(2):
        step(first, optimizer)
        step(second, resumed)
    for name, array in first.state().items():
        np.testing.assert_array_equal(second.state()[name], array, err_msg=name)


def test_a_state_whose_settings_would_be_lost_is_not_saved():
    block = unigrad.wrap(model())
    optimizer = made(block)
    step(block, optimizer)
    for layer in block.native:
        layer.weight, layer.bias = Parameter(layer.weight.numpy()), Parameter(layer.bias.numpy())
    with pytest.raises(unigrad.UnsupportedError, match="make a new Optimizer"):
        optimizer.state()

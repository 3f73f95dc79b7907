"""Factories that make groups or leave parameters out, and models converted before the step (clauses R4, G18, G4)."""

import numpy as np
import pytest
import torch
from torch import nn

import unigrad
from unigrad.errors import ArgumentError, StateMismatchError, UnsupportedError


def one_step(optimizer, leaves, name):
    with unigrad.GradientCollector(leaves, on_unused="ignore") as collector:
        collector.backward(leaves[name].sum())
        collector.apply(optimizer)


def leaves_named(names):
    return {name: nn.Parameter(torch.zeros(())) for name in names}


def test_a_parameter_registered_later_keeps_the_settings_of_its_group():
    """R4: one group for each parameter, as layer-wise rates are written; the step is minus the rate."""
    leaves = leaves_named("abc")
    rates = {id(leaf): rate for leaf, rate in zip(leaves.values(), (1.0, 2.0, 3.0), strict=True)}

    def factory(parameters):
        return torch.optim.SGD([{"params": [parameter], "lr": rates[id(parameter)]} for parameter in parameters])

    optimizer = unigrad.Optimizer(leaves, factory)
    for name in leaves:
        one_step(optimizer, leaves, name)
    assert {name: leaf.item() for name, leaf in leaves.items()} == {"a": -1, "b": -2, "c": -3}


def test_a_parameter_registered_later_joins_the_group_of_its_settings_and_its_schedule():
    leaves = leaves_named("abcd")
    rates = {"a": 1.0, "b": 2.0, "c": 2.0, "d": 1.0}
    of = {id(leaves[name]): rate for name, rate in rates.items()}

    def factory(parameters):
        groups = [[p for p in parameters if of[id(p)] == rate] for rate in (1.0, 2.0)]
        return torch.optim.SGD(
            [{"params": group, "lr": rate} for group, rate in zip(groups, (1.0, 2.0), strict=True) if group]
        )

    optimizer = unigrad.Optimizer(leaves, factory)
    one_step(optimizer, leaves, "a")
    one_step(optimizer, leaves, "b")
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer.native, gamma=0.5)
    one_step(optimizer, leaves, "a")
    schedule.step()
    for name in "cd":
        one_step(optimizer, leaves, name)
    assert {name: leaf.item() for name, leaf in leaves.items()} == {"a": -2, "b": -2, "c": -1, "d": -0.5}


def test_a_parameter_that_the_factory_leaves_out_keeps_its_native_gradient():
    """The optimizer's step touches no ``.grad`` for good."""
    model = nn.Linear(2, 1)
    model.bias.grad = torch.tensor([7.0])
    optimizer = unigrad.Optimizer(
        model, lambda parameters: torch.optim.SGD([p for p in parameters if p.ndim > 1], lr=1.0)
    )
    bias = model.bias.item()
    with unigrad.GradientCollector(model) as collector:
        collector.backward(model(torch.ones(1, 2)).sum())
        collector.apply(optimizer)
    assert model.bias.grad.tolist() == [7]
    assert model.bias.item() == bias
    assert model.weight.grad is None


def test_a_model_converted_before_the_step_is_named():
    model = nn.Linear(2, 1)
    optimizer = unigrad.Optimizer(model, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    with unigrad.GradientCollector(model) as collector:
        collector.backward(model(torch.ones(1, 2)).sum())
        model.half()
        for call in (lambda: collector.apply(optimizer), collector.write_back):
            with pytest.raises(ArgumentError, match="float16"):
                call()
    assert model.weight.grad is None


def test_a_model_converted_after_a_step_moves_nothing():
    """R4, G18: torch fails at the first moments, when the decay has moved the parameters already."""
    block = unigrad.wrap(nn.Linear(2, 1))
    optimizer = unigrad.Optimizer(block, lambda parameters: torch.optim.AdamW(parameters, lr=1.0))

    def step():
        with unigrad.GradientCollector(block) as collector:
            collector.backward(block(torch.ones(1, 2, dtype=block.native.weight.dtype)).sum())
            collector.apply(optimizer)

    step()
    saved = optimizer.state()
    block.native.double()
    before = block.state()
    with pytest.raises(UnsupportedError, match=r"'weight' was converted from float32 to float64.*make a new Optimizer"):
        step()
    assert all(np.array_equal(before[name], value) for name, value in block.state().items())
    with pytest.raises(StateMismatchError, match="weight: of float32, the block has float64"):
        optimizer.load_state(saved)
    block.native.float()
    step()
    assert optimizer.state()["weight/step"] == 2


def test_a_converted_model_without_moments_goes_on():
    block = unigrad.wrap(nn.Linear(2, 1))
    optimizer = unigrad.Optimizer(block, lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    for convert in (nn.Module.float, nn.Module.double):
        convert(block.native)
        weight = block.native.weight.tolist()
        with unigrad.GradientCollector(block) as collector:
            collector.backward(block(torch.ones(1, 2, dtype=block.native.weight.dtype)).sum())
            collector.apply(optimizer)
        assert np.allclose(block.native.weight.tolist(), np.subtract(weight, 1), atol=1e-6)

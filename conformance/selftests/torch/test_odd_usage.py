"""A user's own kind of tensor goes through a model as without a collector (clauses G0, R1)."""

import torch
from torch import nn
from torch.nn.utils import parametrizations

import unigrad


class Tagged(torch.Tensor):
    """A tensor that hands a tag on to every result."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Tagged):
            result.tag = "kept"
        return result


def test_the_first_use_of_a_parameter_keeps_the_kind_of_the_other_argument():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    with unigrad.GradientCollector(model) as collector:
        out = model(torch.ones(1, 2).as_subclass(Tagged))
        assert type(out) is Tagged
        assert out.tag == "kept"
        assert collector.usage.disconnected == ("0.weight", "0.bias", "2.weight", "2.bias")
        collector.backward(out.sum())
    assert len(collector.gradients) == 4


def test_a_parameter_made_of_another_one_in_an_open_collector():
    """As pruning and weight normalization do; torch refuses subclasses of Parameter there."""
    model = nn.Linear(2, 1)
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        for recording in (True, False):
            with torch.set_grad_enabled(recording):
                made = nn.Parameter(model.weight if recording else model.bias)
            assert type(made) is nn.Parameter
            assert made.requires_grad
            assert made.is_leaf
        parametrizations.weight_norm(model)
        collector.backward(model(torch.ones(1, 2)).sum())
        assert len(collector.gradients) == 3
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())

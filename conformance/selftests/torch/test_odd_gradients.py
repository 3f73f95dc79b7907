"""Gradients whose memory is the user's, and models converted between forward and backward (clauses G7, G12, G14, G8, G9)."""

import pytest
import torch
from torch import nn

import unigrad
from unigrad.errors import LossError, StaleGraphError


def collector_of(block, accumulate="write"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


class GivesItsData(torch.autograd.Function):
    """A sum of products whose backward returns the very tensor that it was given."""

    @staticmethod
    def forward(ctx, weight, data):
        ctx.data = data
        return (weight * data).sum()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.data, None


def test_a_gradient_that_an_own_operation_returned_does_not_follow_the_users_tensor():
    """G7: the gradient at the time of the backward, also where its memory is the user's."""
    weight, data = nn.Parameter(torch.ones(2)), torch.tensor([3.0, 4.0])
    with collector_of({"w": weight}) as collector:
        collector.backward(GivesItsData.apply(weight, data))
        data.fill_(9.0)
    assert collector.gradients["w"].tolist() == [3, 4]


def test_sums_of_what_a_hook_returns_from_one_buffer():
    """G1: the hook gives 2 times [1, 2] and then 4 times, in the same memory."""
    weight, buffer = nn.Parameter(torch.ones(2)), torch.tensor([1.0, 2.0])
    weight.register_hook(lambda gradient: buffer.mul_(2))
    with collector_of({"w": weight}, "add") as collector:
        collector.backward(weight.sum())
        collector.backward(weight.sum())
    assert collector.gradients["w"].tolist() == [6, 12]


def test_a_sparse_gradient_does_not_follow_the_ids():
    """G7, G10: torch's sparse gradient holds the ids of the lookup themselves."""
    table, ids = nn.Embedding(4, 1, sparse=True), torch.tensor([1, 2])
    with collector_of(table) as collector:
        collector.backward(table(ids).sum())
        ids.fill_(3)
    assert collector.gradients["weight"].flatten().tolist() == [0, 1, 1, 0]


def test_a_sparse_cotangent_is_a_cotangent():
    weight = nn.Parameter(torch.ones(3))
    with collector_of({"w": weight}) as collector:
        collector.backward(weight * 2, cotangent=torch.tensor([0.0, 5.0, 0.0]).to_sparse())
    assert collector.gradients["w"].tolist() == [0, 10, 0]


@pytest.mark.parametrize("convert", [nn.Module.double, nn.Module.bfloat16])
def test_a_model_converted_after_the_forward_is_stale(convert):
    """G14: torch finds no gradient for a converted parameter and says nothing."""
    model = nn.Linear(2, 1)
    with collector_of(model) as collector:
        loss = model(torch.ones(1, 2)).sum()
        convert(model)
        with pytest.raises(StaleGraphError, match="converted"):
            collector.backward(loss)
        assert not collector.gradients


def test_a_sum_over_a_conversion_has_the_dtype_that_the_parameter_has_now():
    """G12."""
    model = nn.Linear(2, 1, bias=False).bfloat16()
    with collector_of(model, "add") as collector:
        for dtype in (torch.bfloat16, torch.bfloat16, torch.float32):
            model.to(dtype)
            collector.backward(model(torch.ones(1, 2, dtype=dtype)).sum())
            before = collector.gradients
        model.double()
        collector.backward(model(torch.ones(1, 2, dtype=torch.float64)).sum())
    assert before["weight"].dtype is torch.float32
    assert before["weight"].tolist() == [[3, 3]]
    assert collector.gradients["weight"].dtype is torch.float64
    assert collector.gradients["weight"].tolist() == [[4, 4]]


def test_a_tensor_made_in_inference_mode_can_be_watched():
    """G9."""
    weight = nn.Parameter(torch.tensor([3.0]))
    with torch.inference_mode():
        made = torch.tensor([2.0]) * 2
    with collector_of({"w": weight}) as collector:
        collector.backward((collector.watch(made, "x") * weight).sum())
    assert collector.input_gradients["x"].tolist() == [3]
    assert made.is_inference()
    assert not made.requires_grad


def test_a_complex_loss_is_named():
    """G8."""
    weight = nn.Parameter(torch.ones(2))
    with collector_of({"w": weight}) as collector:
        with pytest.raises(LossError, match="complex"):
            collector.backward((weight * 1j).sum())
        collector.backward((weight * 1j).sum(), cotangent=torch.tensor(2j))
    assert collector.gradients["w"].tolist() == [2, 2]

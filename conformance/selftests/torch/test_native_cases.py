"""Real faults of frameworks that only torch's own means express: its functions, hooks, in-place layers and sparse tables.

The number in a test's name is that of the fault in docs/cases.md (clauses C5, C9, G10).
"""

import pytest
import torch
from torch import nn

import unigrad

BOTH = pytest.mark.parametrize("checkpoint", [lambda call, **_: call, unigrad.checkpoint], ids=["plain", "checkpoint"])


class Weighted(torch.autograd.Function):
    """Sum of products, with a backward that says which of its inputs needed a gradient."""

    asked: list = []  # noqa: RUF012  # emptied by the test

    @staticmethod
    def forward(ctx, weight, data):
        ctx.save_for_backward(weight, data)
        return (weight * data).sum()

    @staticmethod
    def backward(ctx, cotangent):
        weight, data = ctx.saved_tensors
        Weighted.asked.append((ctx.needs_input_grad, weight.requires_grad, data.requires_grad))
        return cotangent * data, cotangent * weight if ctx.needs_input_grad[1] else None


@BOTH
def test_case_39_a_custom_operation_is_asked_for_what_the_plain_run_asks(checkpoint):
    Weighted.asked.clear()
    block = unigrad.wrap({"w": nn.Parameter(torch.tensor([3.0, 4.0]))})
    run = checkpoint(lambda data: Weighted.apply(block.parameters["w"], data), blocks=[block])
    with unigrad.GradientCollector(block) as collector:
        collector.backward(run(torch.tensor([1.0, 2.0])))
    assert collector.gradients["w"].tolist() == [1, 2]
    assert Weighted.asked == [((True, False), True, False)]


@BOTH
def test_case_50_a_slice_changed_in_place_is_still_connected(checkpoint):
    block = unigrad.wrap({"p": nn.Parameter(torch.tensor(1.0))})
    run = checkpoint(lambda x: (x + block.parameters["p"])[0:5].relu_(), blocks=[block])
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(torch.zeros(5), name="x")
        collector.backward(run(x).sum())
    assert collector.gradients["p"] == 5
    assert collector.input_gradients["x"].tolist() == [1] * 5


def test_case_50_normalization_and_a_relu_in_place_at_the_end_of_a_region():
    found = []
    for checkpoint, inplace in ((lambda model: model, False), (lambda model: model, True), (unigrad.checkpoint, True)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.InstanceNorm2d(2, affine=True), nn.ReLU(inplace=inplace))
        with unigrad.GradientCollector(model) as collector:
            x = collector.watch(torch.arange(16.0).reshape(1, 1, 4, 4), name="x")
            collector.backward((checkpoint(model)(x) * torch.arange(32.0).reshape(1, 2, 4, 4)).sum())
        found.append({**collector.gradients, **collector.input_gradients})
    assert sorted(found[0]) == ["0.bias", "0.weight", "1.bias", "1.weight", "x"]
    for other in found[1:]:
        assert sorted(other) == sorted(found[0])
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


def test_case_52_a_hook_of_a_parameter_fires_once_a_backward_with_the_whole_sum():
    weight = nn.Parameter(torch.tensor(3.0))
    told: list[float] = []
    weight.register_hook(lambda gradient: told.append(gradient.item()))
    block = unigrad.wrap({"w": weight})
    run = unigrad.checkpoint(lambda t: weight * t, blocks=[block])
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        x = collector.watch(torch.tensor(2.0), name="x")
        loss = run(run(x))
        collector.backward(loss, retain_graph=True)
        assert told == [12]
        collector.backward(loss)
    assert told == [12, 12]
    assert collector.gradients["w"] == 24
    assert collector.input_gradients["x"] == 18


@BOTH
def test_case_58_a_hook_in_backward_runs_outside_of_the_forwards_autocast(checkpoint):
    layer = nn.Linear(2, 2, bias=False)
    run = checkpoint(layer)
    seen = []

    def hook(gradient):
        seen.append((gradient.dtype, torch.is_autocast_enabled("cpu"), (gradient @ gradient.T).dtype))
        return gradient * 1

    with unigrad.GradientCollector(layer) as collector:
        x = collector.watch(torch.ones(1, 2), name="x")
        x.register_hook(hook)
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x)
        assert y.dtype == torch.bfloat16
        collector.backward(y.float().sum())
    assert seen == [(torch.float32, False, torch.float32)]


@BOTH
def test_case_86_rounds_of_a_sparse_table_add_to_a_dense_gradient(checkpoint):
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    run = checkpoint(table)
    with unigrad.GradientCollector(table, accumulate="add") as collector:
        collector.backward(run(torch.tensor([0, 0, 2])).sum())
        collector.backward(run(torch.tensor([1])).sum())
    gradient = collector.gradients["weight"]
    assert gradient.layout is torch.strided
    assert gradient.tolist() == [[2, 2], [1, 1], [1, 1], [0, 0]]


def test_case_87_a_sparse_lookup_in_a_checkpoint_and_a_dense_use_add():
    table = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(table.weight)
    with unigrad.GradientCollector(table) as collector:
        rows = unigrad.checkpoint(table)(torch.tensor([0, 0, 2]))
        collector.backward(rows.sum() + (table.weight * table.weight).sum())
    assert collector.gradients["weight"].tolist() == [[4, 4], [2, 2], [3, 3], [2, 2]]

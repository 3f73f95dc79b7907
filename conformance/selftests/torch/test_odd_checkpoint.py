"""Checkpoints in unusual surroundings (clauses C1, C3)."""

import warnings

import pytest
import torch
from torch import nn

import unigrad


def test_a_backward_in_inference_mode_recomputes_as_any_other():
    """C1: torch differentiates there, so a recompute has to record there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    found = []
    for call in (model, unigrad.checkpoint(model)):
        with unigrad.GradientCollector(model) as collector:
            loss = call(torch.ones(5, 3).cumsum(0)).sum()
            moved = model[1].running_mean.clone()
            with torch.inference_mode():
                collector.backward(loss)
        assert torch.equal(model[1].running_mean, moved)
        found.append(collector.gradients)
    plain, rerun = found
    assert list(plain) == list(rerun)
    assert all(torch.equal(plain[name], rerun[name]) for name in plain)


def test_a_model_without_values_goes_through_a_checkpoint():
    """C5: on the meta device there is nothing to compare, and shapes are right."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).to("meta")
    with unigrad.GradientCollector(model) as collector:
        collector.backward(unigrad.checkpoint(model)(torch.empty(4, 3, device="meta")).sum())
    assert {name: tuple(value.shape) for name, value in collector.gradients.items()} == {
        "0.weight": (2, 3),
        "0.bias": (2,),
    }


def test_a_nested_tensor_goes_through_a_checkpoint():
    """C5."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    found = []
    for call in (model, unigrad.checkpoint(model)):
        with unigrad.GradientCollector(model) as collector:
            collector.backward(call(ragged).values().sum())
        found.append(collector.gradients)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_what_a_checkpoint_makes_once_is_not_kept_for_backward():
    """Y1, C4: the first region of a process keeps as much as any other."""
    from unigrad_torch import fingerprint

    fingerprint._weights.clear()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    run = unigrad.checkpoint(model)
    kept, x = [], torch.ones(5, 3)
    for _ in range(2):
        with unigrad.kept_bytes(model) as meter:
            outputs = run(x)
        kept.append(meter.bytes)
    assert kept == [outputs.numel() * 4] * 2


@pytest.mark.parametrize("inside", [False, True])
def test_a_compiled_module_in_a_region_is_compiled_once_and_whole(inside):
    """C3, C13: nothing that a region watches gets into the compiled graph, and torch warns of nothing."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    run = unigrad.checkpoint((lambda x: compiled(x).tanh()) if inside else compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for times in (1, 2):
            loss = (run(torch.ones(5, 3).cumsum(0)) ** 2).sum()
            loss.backward()
            assert model[1].num_batches_tracked.item() == times
    assert len(graphs) == 1


def test_a_forward_that_is_no_method_belongs_to_its_module():
    """C3, M2: libraries assign partials and functions to ``module.forward``."""
    model = nn.BatchNorm1d(3)
    plain = model.forward
    model.forward = lambda input, scale=1.0: plain(input) * scale
    x = torch.ones(4, 3).cumsum(0)
    unigrad.checkpoint(model)(x, scale=2.0).sum().backward()
    assert model.num_batches_tracked.item() == 1
    parts = unigrad.microbatch(model.eval(), size=3, whole=("scale",))
    assert torch.equal(parts(x, torch.tensor([2.0, 3.0, 4.0])), model(x, torch.tensor([2.0, 3.0, 4.0])))

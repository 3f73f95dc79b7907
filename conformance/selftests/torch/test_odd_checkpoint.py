"""Checkpoints in unusual surroundings (clauses C1, C3)."""

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

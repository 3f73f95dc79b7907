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

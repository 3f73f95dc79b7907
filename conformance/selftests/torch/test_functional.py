"""Parameters that a call is given, or that are replaced before the backward; transforms of functions (C1, B9)."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

import unigrad
from unigrad.errors import UnsupportedError

X = torch.linspace(-1.0, 1.0, 18).reshape(6, 3)
REGIONS = {
    "tanh": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)),
    "batch-norm": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
}


def network(region, enabled):
    torch.manual_seed(0)
    inner = unigrad.checkpoint(REGIONS[region]())
    inner.enabled = enabled
    return nn.Sequential(inner, nn.Linear(2, 1))


def given(model, x):
    """Gradients of leaves that stand in for the parameters."""
    leaves = {name: (2 * p.detach()).requires_grad_() for name, p in model.named_parameters()}
    return torch.autograd.grad(functional_call(model, leaves, (x,)).pow(2).mean(), list(leaves.values()))


def computed(model, x):
    """Gradients through one step of gradient descent, as in meta-learning (https://arxiv.org/abs/1703.03400)."""
    parameters = dict(model.named_parameters())
    first = torch.autograd.grad(model(x).pow(2).mean(), list(parameters.values()), create_graph=True)
    stepped = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), first, strict=True)}
    return torch.autograd.grad(functional_call(model, stepped, (x,)).pow(2).mean(), list(parameters.values()))


def replaced(model, x):
    """Gradients of what the forward used, while another parameter stands in its place."""
    loss = model(x).pow(2).mean()
    old = model[0][0].weight
    model[0][0].weight = new = nn.Parameter(3 * old.detach())
    loss.backward()
    assert new.grad is None
    assert model[0][0].weight is new
    return [old.grad, model[1].weight.grad]


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("gradients", [given, computed, replaced])
def test_the_parameters_of_the_forward_are_those_of_the_recompute(gradients, region):
    found = []
    for enabled in (True, False):
        model = network(region, enabled)
        unigrad.seed(1)
        found.append(gradients(model, X))
        found[-1] = [*found[-1], *(buffer.double() for buffer in model.buffers())]
    assert all(map(torch.equal, *found))


def test_parameters_given_to_a_microbatch():
    found = []
    for enabled in (True, False):
        model = network("tanh", True)
        model[0] = unigrad.microbatch(model[0], 4)
        model[0].enabled = enabled
        found.append(given(model, X))
    # two parts, each a sum of its own samples
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(*found, strict=True))


def test_inside_of_vmap_it_is_refused():
    with pytest.raises(UnsupportedError, match=r"torch\.vmap"):
        torch.vmap(network("tanh", True))(X)


def test_control_inside_of_vmap_without_recording_it_is_the_plain_call():
    with torch.no_grad():
        mapped = [torch.vmap(network("tanh", enabled))(X) for enabled in (True, False)]
    assert torch.equal(*mapped)


def test_a_gradient_transform_inside_of_the_region_is_refused():
    inner = nn.Linear(3, 1)
    run = unigrad.checkpoint(lambda x: torch.func.grad(lambda x: inner(x).pow(2).sum())(x))
    with pytest.raises(UnsupportedError, match=r"autograd\.grad"):
        run(X.clone().requires_grad_())


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, as jvp loads its decompositions
def test_control_other_transforms_are_served():
    inner, x = nn.Linear(3, 1), X.clone().requires_grad_()
    found = []
    for run in (lambda f: f, unigrad.checkpoint):
        mapped = run(lambda x: torch.vmap(inner)(x).tanh())
        found.append(torch.autograd.grad(mapped(x).sum(), [x, inner.weight]))
    assert all(map(torch.equal, *found))
    tangents = [torch.func.jvp(network("tanh", enabled), (X,), (X,))[1] for enabled in (True, False)]
    assert torch.equal(*tangents)

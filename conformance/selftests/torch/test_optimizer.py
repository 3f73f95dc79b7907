"""One native step with given gradients, and state for what is served only (clauses R4, G18)."""

import pytest
import torch
from torch import nn
from unigrad_torch import memory, optimizer

from unigrad.errors import ArgumentTypeError

FACTORIES = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
}


@pytest.fixture(params=FACTORIES)
def factory(request):
    return FACTORIES[request.param]


def parameters(count=3):
    return [nn.Parameter(torch.ones(2)) for _ in range(count)]


def test_a_parameter_without_a_gradient_does_not_move(factory):
    """Case 67: neither decay nor momentum, also of an earlier step."""
    a, b, _ = parameters()
    made = optimizer.create(factory, {"a": a, "b": b})
    optimizer.step(made, [(a, torch.ones(2)), (b, torch.ones(2))])
    before = b.detach().clone()
    optimizer.step(made, [(a, torch.ones(2)), (b, None)])
    assert torch.equal(b, before)
    assert not torch.equal(a, before)


def test_native_gradients_are_as_they_were(factory):
    a, b, c = parameters()
    a.grad, b.grad = (kept := torch.full((2,), 7.0)), (other := torch.full((2,), 8.0))
    made = optimizer.create(factory, {"a": a, "b": b, "c": c})
    optimizer.step(made, [(a, torch.ones(2)), (c, torch.ones(2))])
    assert (a.grad is kept, b.grad is other, c.grad) == (True, True, None)
    assert kept.tolist() == [7.0, 7.0]
    assert b.tolist() == [1.0, 1.0], "a gradient lying about is not used"


def test_a_parameter_taken_in_later_is_treated_as_the_first(factory):
    a, b, _ = parameters()
    made = optimizer.create(factory, {"a": a})
    optimizer.extend(made, {"b": b})
    for _ in range(3):
        optimizer.step(made, [(a, torch.ones(2)), (b, torch.ones(2))])
    assert torch.equal(a, b)
    assert len(made.param_groups) == 1


def test_a_schedule_reaches_a_parameter_taken_in_later():
    a, b, _ = parameters()
    made = optimizer.create(lambda p: torch.optim.SGD(p, lr=1.0), {"a": a})
    schedule = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)
    optimizer.extend(made, {"b": b})
    optimizer.step(made, [])
    schedule.step()
    optimizer.step(made, [(a, torch.ones(2)), (b, torch.ones(2))])
    assert (a.tolist(), b.tolist()) == ([0.5, 0.5], [0.5, 0.5])


def test_state_goes_through_numpy_and_back(factory):
    (a, b, _), gradient = parameters(), torch.tensor([1.0, 2.0])
    made, other = optimizer.create(factory, {"a": a}), optimizer.create(factory, {"b": b})
    optimizer.step(made, [(a, gradient)])
    with torch.no_grad():
        b.copy_(a)
    state = {
        key: value.numpy() if torch.is_tensor(value) else value for key, value in optimizer.state_of(made, a).items()
    }
    optimizer.set_state_of(other, b, state)
    optimizer.step(made, [(a, gradient)])
    optimizer.step(other, [(b, gradient)])
    assert torch.equal(a, b)


def test_a_factory_that_makes_no_optimizer():
    with pytest.raises(ArgumentTypeError, match="AdamW"):
        optimizer.create(lambda p: p, {"a": parameters()[0]})


def test_kept_bytes_count_storages_once_and_not_views_or_what_was_there():
    layer, x = nn.Linear(64, 64, bias=False), torch.randn(256, 64)
    one = x.numel() * 4
    with memory.measure(list(layer.parameters())) as meter:
        y = layer(x).tanh()
        _view = y.t()[:3]
    assert meter.bytes == one
    with memory.measure(list(layer.parameters())) as meter:
        del y, _view
        x.view(-1)
    assert meter.bytes == 0

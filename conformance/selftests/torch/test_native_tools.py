"""GradScaler, clipping and learning-rate schedules of torch beside collectors (clauses G18, R4, D2)."""

import itertools

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import unigrad
from unigrad.errors import StateMismatchError, UnsupportedError

X = torch.tensor([[1.0, 2.0, -1.0], [3.0, 5.0, 0.5]])


def network():
    torch.manual_seed(0)
    parts = {"body": nn.Linear(3, 4), "first": nn.Linear(4, 2), "second": nn.Linear(4, 2)}
    return nn.ModuleDict(parts)


def loss_of(model, both):
    hidden = model["body"](X).tanh()
    out = model["first"](hidden)
    return (out + model["second"](hidden) if both else out).pow(2).mean()


def collected(model, both=False, scale=lambda loss: loss, accumulate="write", times=1):
    with unigrad.GradientCollector(model, accumulate, on_unused="ignore") as collector:
        for _ in range(times):
            collector.backward(scale(loss_of(model, both)))
    return collector


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def native(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("accumulate", [1, 3], ids=["each", "three-in-one"])
def test_unscaling_then_clipping_is_that_of_the_plain_loop(accumulate):
    """Bit for bit, and unscaling in place does not reach what the collector holds."""
    model, plain = network(), network()
    ours, theirs = native(model.parameters()), native(plain.parameters())
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0) for _ in range(2)]
    for _ in range(3):
        collector = collected(model, False, scalers[0].scale, "add", accumulate)
        collector.write_back()
        kept = collector.gradients["body.weight"].clone()
        theirs.zero_grad()
        for _ in range(accumulate):
            scalers[1].scale(loss_of(plain, False)).backward()
        for scaler, optimizer, parameters in zip(scalers, (ours, theirs), (model, plain), strict=True):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
        assert torch.equal(collector.gradients["body.weight"], kept)
        assert model["second"].weight.grad is None, "absent stays None"
        assert same(model, plain)
    assert scalers[0].state_dict() == scalers[1].state_dict()


def test_only_the_optimizer_that_met_an_infinity_skips_its_step():
    good, bad = network(), network()
    before = [parameter.detach().clone() for parameter in bad.parameters()]
    optimizers = [native(good.parameters()), native(bad.parameters())]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    collected(good, scale=scaler.scale).write_back()
    collected(bad, scale=lambda loss: scaler.scale(loss) * float("inf")).write_back()
    moved = good["first"].weight.detach().clone()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512
    assert not torch.equal(good["first"].weight, moved)
    assert all(torch.equal(a, b) for a, b in zip(bad.parameters(), before, strict=True))


def test_a_block_without_any_gradient_is_told_by_the_scaler_as_ever():
    model = network()
    optimizer = native(model["second"].parameters())
    scaler = torch.amp.GradScaler("cpu")
    collected(model, scale=scaler.scale).write_back()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)


def test_clipping_what_autograd_would_have_given_as_one_tensor():
    """The gradients of two summands are one tensor in torch.autograd.grad; clipped in place as one it would shrink twice."""
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with unigrad.GradientCollector({"a": a, "b": b}) as collector:
        collector.backward((a + b).sum())
    collector.write_back()
    nn.utils.clip_grad_norm_([a, b], 1.0)
    # four equal elements of norm 1; torch adds 1e-6 to the norm of 2
    torch.testing.assert_close(torch.cat([a.grad, b.grad]), torch.full((4,), 0.5), rtol=0, atol=1e-6)


def two_groups(first):
    """Return a factory of two groups, the second of which may be empty."""
    chosen = {id(parameter) for parameter in first}

    def factory(parameters):
        groups = [[p for p in parameters if id(p) in chosen], [p for p in parameters if id(p) not in chosen]]
        return torch.optim.AdamW([{"params": group, "lr": 0.05} for group in groups])

    return factory


SCHEDULES = {
    "lambda": lambda made: lr_scheduler.LambdaLR(made, [lambda step: 0.9**step, lambda step: 1 / (1 + step)]),
    "one-cycle": lambda made: lr_scheduler.OneCycleLR(made, max_lr=[0.1, 0.2], total_steps=9),
    "plateau": lambda made: lr_scheduler.ReduceLROnPlateau(made, patience=0, factor=0.5, threshold=0.5),
    "exponential": lambda made: lr_scheduler.ExponentialLR(made, 0.7),
    "warm-up": lambda made: lr_scheduler.SequentialLR(
        made, [lr_scheduler.ConstantLR(made, 0.1, 2), lr_scheduler.ExponentialLR(made, 0.9)], [2]
    ),
}


@pytest.fixture(params=SCHEDULES)
def make(request):
    return SCHEDULES[request.param]


def advance(schedule, loss):
    schedule.step(loss.item()) if isinstance(schedule, lr_scheduler.ReduceLROnPlateau) else schedule.step()


def outer(model):
    return [*model["first"].parameters(), *model["second"].parameters()]


def test_a_schedule_made_with_the_optimizer_is_that_of_the_plain_loop(make):
    """The second head comes into use at the fifth step, into its group: bit for bit, in the first step with the scheduled rate."""
    model, plain = network(), network()
    optimizer = unigrad.Optimizer(model, two_groups(outer(model)), schedule=make)
    theirs = two_groups(outer(plain))(list(plain.parameters()))
    schedule = make(theirs)
    for step in range(8):
        loss = loss_of(plain, step >= 4)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        collected(model, step >= 4).apply(optimizer)
        assert same(model, plain), step
        advance(schedule, loss)
        advance(optimizer.schedule, loss)
    assert optimizer.native.param_groups[0]["lr"] != 0.05, "the schedule moves"


def test_a_group_that_the_schedule_does_not_know_is_refused():
    """Nothing has moved then; the same groups each time, empty ones too, are the way."""
    model = network()
    rate = itertools.count(1)
    optimizer = unigrad.Optimizer(
        model,
        lambda parameters: torch.optim.SGD([{"params": [p], "lr": 0.01 * next(rate)} for p in parameters]),
        schedule=lambda made: lr_scheduler.ExponentialLR(made, 0.5),
    )
    collected(model).apply(optimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(UnsupportedError, match="empty lists"):
        collected(model, both=True).apply(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert len(optimizer.served) == len(optimizer.native.param_groups) == 4


def test_groups_of_equal_settings_that_a_schedule_has_parted_are_refused():
    model = network()
    optimizer = unigrad.Optimizer(
        model,
        lambda parameters: torch.optim.SGD([{"params": [p], "lr": 0.1} for p in parameters]),
        schedule=lambda made: lr_scheduler.LambdaLR(made, [lambda step, k=k: 0.5 ** (k * step) for k in range(4)]),
    )
    collected(model).apply(optimizer)
    optimizer.schedule.step()
    with pytest.raises(UnsupportedError, match="can't be told from others"):
        collected(model, both=True).apply(optimizer)


def test_a_schedule_goes_on_after_loading(make, tmp_path):
    """The program keeps the schedule's state; what the schedule had set in the optimizer comes with the optimizer."""
    path = tmp_path / "run.safetensors"

    def run():
        model = network()
        return model, unigrad.Optimizer(model, two_groups(outer(model)), schedule=make)

    def steps(model, optimizer, numbers):
        for number in numbers:
            collector = collected(model, number >= 5)
            collector.apply(optimizer)
            advance(optimizer.schedule, loss_of(model, number >= 5))

    model, optimizer = run()
    steps(model, optimizer, range(3))
    unigrad.save_training(path, model, optimizer)
    state = optimizer.schedule.state_dict()
    other, another = run()
    unigrad.load_training(path, other, another)
    another.schedule.load_state_dict(state)
    rates = [[group["lr"] for group in made.native.param_groups] for made in (optimizer, another)]
    assert rates[0] == rates[1]
    for pair in ((model, optimizer), (other, another)):
        steps(*pair, range(3, 8))
    assert same(model, other)


@pytest.mark.parametrize(
    "factory",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.NAdam(p, lr=0.1),
        lambda p: torch.optim.RAdam(p, lr=0.1),
        lambda p: torch.optim.Rprop(p, lr=0.1),
        lambda p: torch.optim.ASGD(p, lr=0.1),
        lambda p: torch.optim.Adadelta(p, lr=0.1),
        lambda p: torch.optim.Adamax(p, lr=0.1),
        lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
        lambda p: torch.optim.Adafactor(p, lr=0.1),
    ],
    ids=[
        "nesterov",
        "sgd",
        "amsgrad",
        "fused",
        "adagrad",
        "nadam",
        "radam",
        "rprop",
        "asgd",
        "adadelta",
        "adamax",
        "rmsprop",
        "adafactor",
    ],
)
def test_the_state_of_each_optimizer_of_torch_moves_as_arrays(factory):
    model, other = network(), network()
    optimizer, another = (unigrad.Optimizer(item, factory) for item in (model, other))
    for _ in range(2):
        collected(model).apply(optimizer)
    unigrad.wrap(other).load_state(unigrad.wrap(model).state())
    another.load_state(optimizer.state())
    for both in (False, True):
        collected(model, both).apply(optimizer)
        collected(other, both).apply(another)
    assert same(model, other)


def test_a_state_of_more_groups_than_the_factory_makes():
    model = network()
    optimizer = unigrad.Optimizer(model, two_groups(outer(model)))
    collected(model).apply(optimizer)
    other = unigrad.Optimizer(model, torch.optim.AdamW)
    with pytest.raises(StateMismatchError, match="makes 1 groups"):
        other.load_state(optimizer.state())
    assert other.native is None

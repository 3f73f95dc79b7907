"""A module that is another one in everything but its forward (clauses C13, M7)."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from unigrad_torch import block

from unigrad.errors import UnsupportedError


class Count:
    """A run that can be pickled."""

    def __init__(self):
        self.calls = 0

    def __call__(self, forward, *args, **kwargs):
        self.calls += 1
        return forward(*args, **kwargs)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())


@pytest.fixture
def x():
    return torch.randn(5, 3)


def test_it_is_the_plain_module_but_for_its_forward(model, x):
    run = Count()
    twin = block.facade(model, run)
    assert isinstance(twin, nn.Sequential)
    assert repr(twin) == repr(model)
    assert list(twin.state_dict()) == list(model.state_dict())
    assert all(a is b for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    assert torch.equal(twin.eval()(x), model(x))
    assert not model.training, "modes are shared"
    assert run.calls == 1


def test_hooks_of_the_module_fire_once_outside_of_the_run(model, x):
    twin, order = block.facade(model, lambda forward, *args: [order.append("run"), forward(*args)][1]), []
    model.register_forward_pre_hook(lambda module, args: order.append("before"))
    twin.register_forward_hook(lambda module, args, output: order.append("after"))
    twin(x)
    assert order == ["before", "run", "after"]


def test_a_forward_put_into_the_instance_is_run(model, x):
    """Some libraries replace the forward of an instance; the facade must not be bypassed by that."""
    run = Count()
    twin = block.facade(model, run)
    model.forward = lambda x: x * 2
    assert torch.equal(twin(x), x * 2)
    assert run.calls == 1


def test_disabled_it_is_the_plain_call(model, x):
    run = Count()
    twin = block.facade(model, run)
    twin.enabled = False
    twin(x)
    assert run.calls == 0
    assert "enabled" not in model.__dict__


def test_names_inside_containers_have_no_prefix(model):
    outer = nn.ModuleDict({"neck": block.facade(model, Count())})
    assert list(outer.state_dict()) == [f"neck.{name}" for name in model.state_dict()]


def test_a_deep_copy_shares_nothing_but_the_run(model, x):
    run = Count()
    outer = nn.Sequential(block.facade(model, run))
    twin = copy.deepcopy(outer)
    with torch.no_grad():
        model[0].weight.zero_()
    assert twin[0][0].weight.abs().sum() > 0
    twin(x)
    assert run.calls == 1


def test_saving_as_a_whole(model, x):
    outer = nn.Sequential(block.facade(model, Count())).eval()
    file = io.BytesIO()
    torch.save(outer, file)
    file.seek(0)
    for twin in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(outer))):
        assert torch.equal(twin(x), outer(x))
        assert twin[0].__unigrad_run__.calls > 0


def test_a_run_that_cannot_be_pickled_says_so(model):
    with pytest.raises(UnsupportedError, match="cannot be pickled"):
        pickle.dumps(block.facade(model, lambda forward, *args: forward(*args)))


def test_loading_a_state(model, x):
    twin = block.facade(copy.deepcopy(model), Count())
    nn.init.zeros_(twin[0].weight)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.eval()(x), model.eval()(x))


def test_a_lazy_layer_becomes_the_ordinary_one(x):
    layer, run = nn.LazyLinear(2), Count()
    twin = block.facade(layer, run)
    y = twin(x)
    assert type(layer) is nn.Linear
    assert isinstance(twin, nn.Linear)
    assert torch.equal(twin(x), y)
    assert run.calls == 2


def test_of_a_facade(model, x):
    first, second = Count(), Count()
    twin = block.facade(block.facade(model, first), second)
    twin(x)
    assert (first.calls, second.calls) == (1, 1)


def test_a_script_module_is_refused():
    class Scripted(nn.Module):
        def forward(self, x):
            return x

    with pytest.warns(DeprecationWarning, match=r"torch\.jit"):
        scripted = torch.jit.script(Scripted())
    with pytest.raises(UnsupportedError, match="script"):
        block.facade(scripted, Count())

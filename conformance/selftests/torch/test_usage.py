"""Which leaves are seen to be used: by functions, fused layers and containers, not by looking (clauses R1, G0)."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from unigrad_torch import tape

from unigrad.errors import UnsupportedError


def names(model, seen):
    ids = {id(leaf) for leaf in seen}
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_a_layer_whose_output_is_dropped_is_used_and_another_is_not(watching):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    with watching(*model.parameters()) as seen:
        model["b"](torch.ones(1, 2))
        model["a"](torch.ones(1, 2))
    assert names(model, seen) == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_functional_use_without_the_layer(watching):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with watching(*model.parameters()) as seen:
        functional.linear(torch.ones(1, 2), model["a"].weight, bias=model["b"].bias)
    assert names(model, seen) == {"a.weight", "b.bias"}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_weights_in_a_list(watching, kind):
    model = kind(2, 3)
    with watching(*model.parameters()) as seen:
        model(torch.ones(4, 1, 2))
    assert names(model, seen) == set(dict(model.named_parameters()))


def test_a_projection_that_is_never_called_as_a_layer(watching):
    """Hooks on modules miss out_proj, as attention uses its weight and never calls it."""
    model = nn.MultiheadAttention(4, 2)
    with watching(*model.parameters()) as seen:
        model(*[torch.ones(3, 1, 4)] * 3)
    assert names(model, seen) == set(dict(model.named_parameters()))


def test_a_transposed_view(watching):
    a = nn.Parameter(torch.ones(2, 2))
    with watching(a) as seen:
        a.T @ torch.ones(2)
    assert [leaf is a for leaf in seen] == [True]


def test_an_argument_of_an_own_function_is_found_by_the_walk():
    """torch shows no mode the call of an own function, and its forward runs unrecorded: only what a loss reaches is seen."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    a = nn.Parameter(torch.ones(2))
    assert tape.trace([Double.apply(a).sum()]).leaves[0] is a


def test_a_plain_leaf_is_seen_and_data_is_not(watching):
    a, x = torch.ones(2, requires_grad=True), torch.ones(2)
    with watching(a) as seen:
        a * x
    assert [leaf is a for leaf in seen] == [True]


def test_looking_is_no_use(watching):
    model = nn.Linear(2, 2)
    with watching(*model.parameters()) as seen:
        assert model.weight.shape == (2, 2)
        assert model.weight.numel() == 4
        repr(model)
        model.weight.requires_grad_(True)
        list(model.parameters())
    assert not seen


def test_nothing_is_used_where_nothing_is_recorded(watching):
    model = nn.Linear(2, 2)
    with watching(*model.parameters()) as seen, torch.no_grad():
        model(torch.ones(1, 2))
    assert not seen


def test_the_own_primitives_are_no_use(watching):
    from unigrad_torch import arrays

    model = nn.Linear(2, 2)
    with watching(*model.parameters()) as seen:
        for parameter in model.parameters():
            arrays.to_numpy(parameter)
            arrays.clone(parameter)
            arrays.version(parameter)
            arrays.equal(parameter, parameter)
            arrays.zeros(parameter)
            arrays.assign(parameter, arrays.to_numpy(parameter))
    assert not seen


def test_a_differentiation_is_no_use_of_its_inputs(watching):
    a = nn.Parameter(torch.ones(2))
    loss = (a * a).sum()
    with watching(a) as seen:
        tape.vjp(tape.trace([loss]), [None], [a], retain=True, create=False)
        torch.autograd.grad(loss, [a])
    assert not seen


@pytest.mark.parametrize("others", [False, True])
def test_an_expected_leaf_is_told_again(others):
    a = nn.Parameter(torch.ones(2))
    region = tape.open_region()
    try:
        region.expect([a], others)
        a * 2
        a * 2
        assert [leaf is a for leaf in region.used()] == [True]
        region.expect([a], others)
        a * 2
        assert [leaf is a for leaf in region.used()] == [True]
    finally:
        tape.close_region(region)


def test_marks_leave_no_trace(watching):
    """Clause G15: a leaf that waits for its use has its own class again, and so has each copy made meanwhile."""
    model, plain = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    with watching(*model.parameters(), plain):
        twin = copy.deepcopy(model)
        saved = pickle.dumps(model)
        assert isinstance(model.weight, nn.Parameter)
    for one in (model, twin, pickle.loads(saved)):
        assert {type(parameter) for parameter in one.parameters()} == {nn.Parameter}
    assert type(plain) is torch.Tensor


def test_modes_of_the_user_outlive_the_region():
    """Clause G15: a mode opened later is still there when the region is closed first."""
    calls = []

    class Mine(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    depth = torch._C._len_torch_function_stack()
    region = tape.open_region()
    region.expect([], True)
    with Mine():
        tape.close_region(region)
        torch.ones(2) + 1
    assert calls
    assert torch._C._len_torch_function_stack() == depth


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(UnsupportedError, match="inference_mode"):
        tape.open_region()

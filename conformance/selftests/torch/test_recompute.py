"""The checkpoint by saved-tensor hooks, where torch's own gives another number or keeps memory (clauses C1 to C12)."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from unigrad_torch import checkpoint

import unigrad
from unigrad.errors import (
    CapturedTensorError,
    CreatedParameterError,
    RecomputeMismatchError,
    StaleGraphError,
    UnsupportedError,
)


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def function(x):
    return x.sin() * x


def penalty(x):
    """Differentiate inside the function, and give a value whose gradient goes through that."""
    (inner,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
    return (inner**2 + x).sum()


WAYS = {
    "once": unigrad.checkpoint,
    "nested": lambda f: unigrad.checkpoint(lambda x: unigrad.checkpoint(f)(x * 1.0) * 1.0),
    "thrice": lambda f: unigrad.checkpoint(lambda x: unigrad.checkpoint(lambda y: unigrad.checkpoint(f)(y))(x)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_second_order_bits(way):
    def second(f):
        x = leaf(0.3, 0.7)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert torch.equal(second(way(function)), second(function))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_gradient_taken_inside_the_function(way):
    def grad(f):
        x = leaf(0.3, 0.7)
        return torch.autograd.grad(f(x * 1.0), x)[0]

    assert torch.equal(grad(way(penalty)), grad(penalty))


def test_calls_are_one_a_backward():
    """Case 17."""
    calls = []
    x = leaf(1.0, 2.0)
    y = unigrad.checkpoint(lambda x: calls.append(1) or function(x))(x).sum()
    for retain in (True, False):
        torch.autograd.grad(y, x, retain_graph=retain)
    assert len(calls) == 3


def test_a_saved_tensor_read_twice_in_one_backward():
    """A custom operation may unpack what it saved as often as it likes."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (first,), (second,) = ctx.saved_tensors, ctx.saved_tensors
            return gradient * (first + second)

    x = leaf(3.0)
    y = unigrad.checkpoint(lambda x: Square.apply(x * 1.0))(x)
    assert torch.autograd.grad(y, x)[0].tolist() == [6.0]


class Spy(nn.Module):
    """Keeps weak references to what passes."""

    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def forward(self, x):
        self.seen.append(weakref.ref(x.untyped_storage()))
        return x


@pytest.fixture
def no_collection():
    """Only reference counts free memory: a cycle would stay."""
    gc.disable()
    yield
    gc.enable()


def spied(way=unigrad.checkpoint):
    seen = []
    layers = [layer for _ in range(3) for layer in (nn.Linear(4, 4), Spy(seen), nn.Tanh(), Spy(seen))]
    return way(nn.Sequential(*layers, nn.Linear(4, 1))), seen


def alive(seen):
    return [index for index, reference in enumerate(seen) if reference() is not None]


@pytest.mark.usefixtures("no_collection")
def test_inner_values_are_dead_after_forward_and_after_each_backward():
    """Case 18, also where a backward asks for a part of the graph only."""
    model, seen = spied()
    loss = model(torch.randn(2, 4)).sum()
    assert alive(seen) == []
    loss.backward(retain_graph=True)
    assert alive(seen) == []
    torch.autograd.grad(loss, [model[8].weight], retain_graph=True)
    assert alive(seen) == []
    assert len(seen) == 18
    del loss
    assert alive(seen) == []


@pytest.mark.usefixtures("no_collection")
def test_a_backward_that_fails_elsewhere_leaves_nothing_once_the_loss_is_gone():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("mine")

    model, seen = spied()
    loss = model(Fails.apply(torch.randn(2, 4, requires_grad=True))).sum()
    with pytest.raises(KeyError, match="mine"):
        loss.backward()
    del loss
    assert alive(seen) == []


@pytest.mark.usefixtures("no_collection")
def test_inputs_of_a_finished_region_die_before_the_backward_ends():
    references, alive_then = [], []

    def remember(x):
        references.append(weakref.ref(x.untyped_storage()))
        return x

    first, second = nn.Linear(4, 4), unigrad.checkpoint(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    first.weight.register_hook(lambda gradient: alive_then.append(references[0]() is not None))
    loss = second(remember(first(torch.randn(2, 4)))).sum()
    loss.backward()
    assert alive_then == [False]


def test_an_inner_region_keeps_nothing_of_its_own_in_the_outer_forward():
    model, seen = spied(lambda m: unigrad.checkpoint(lambda x: unigrad.checkpoint(m)(x.tanh()).tanh()))
    loss = model(torch.randn(2, 4, requires_grad=True)).sum()
    assert alive(seen) == []
    loss.backward()
    assert alive(seen) == []


def test_a_value_overwritten_inside_is_refused_as_torch_refuses_it_plainly():
    """Case 19 inside a region, where torch.utils.checkpoint gives the gradient at the overwritten value."""

    def overwrites(x):
        y = torch.sigmoid(x)
        y[1] = 2.0
        return y.sum()

    x = leaf(1.0, 2.0, 3.0)
    loss = unigrad.checkpoint(overwrites)(x)
    with pytest.raises(StaleGraphError, match="inside a checkpointed function"):
        torch.autograd.grad(loss, x)


def test_an_argument_changed_in_place_by_the_function_is_refused():
    with pytest.raises(UnsupportedError, match=r"changes argument\[0\]\[0\] in place"):
        unigrad.checkpoint(lambda x: x.mul_(2).sin() * x)(leaf(1.0) * 1.0)


def test_an_argument_changed_after_the_forward_is_refused():
    x = leaf(1.0) * 1.0
    y = unigrad.checkpoint(function)(x)
    x.add_(1)
    with pytest.raises(StaleGraphError, match=r"argument\[0\]\[0\]"):
        y.sum().backward()


def test_more_and_fewer_saved_tensors_are_told_by_position():
    for first in (True, False):
        calls = []

        def other(x, calls=calls, first=first):
            calls.append(1)
            return x.sin().exp() if (len(calls) == 1) is first else x.sin()

        x = leaf(0.5)
        y = unigrad.checkpoint(other)(x)
        with pytest.raises(RecomputeMismatchError, match="position 1 is missing" if first else "more than 1 tensors"):
            y.backward()


def test_another_shape_names_both():
    calls = []

    def other(x):
        calls.append(1)
        return x[: 3 - len(calls)].sin().sum()

    x = leaf(1.0, 2.0, 3.0)
    y = unigrad.checkpoint(other)(x)
    with pytest.raises(RecomputeMismatchError, match=r"position 0.*shape \(2,\).*shape \(1,\)"):
        y.backward()


W = None


def test_a_captured_tensor_is_named():
    global W
    x = leaf(2.0)
    closed, W = x * 3, x * 4
    holder = {"inner": closed}
    layer = nn.Linear(1, 1)
    layer.extra = closed
    cases = {
        "closed": lambda t: t + closed,
        "W": lambda t: t + W,
        "inner": lambda t: t * holder["inner"],
        "layer.extra": lambda t: layer(t) * layer.extra,
    }
    for name, captures in cases.items():
        with pytest.raises(CapturedTensorError, match=f"'.*{name}.*'.*MulBackward0"):
            unigrad.checkpoint(captures)(x)


def test_another_part_of_the_same_split_is_captured():
    """The graph node of both parts is one; only the number of its output tells them apart."""
    first, second = (leaf(1.0, 2.0) * 1).split(1)
    with pytest.raises(CapturedTensorError, match="second"):
        unigrad.checkpoint(lambda t: t * second)(first)


def test_a_weight_that_autocast_had_cast_before_is_no_capture():
    layer, x = nn.Linear(2, 1, bias=False), torch.ones(1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = (layer(x) + unigrad.checkpoint(lambda t: layer(t) * 2)(x)).sum()
    loss.backward()
    assert layer.weight.grad.tolist() == [[3.0, 3.0]]


def test_precision_contexts_inside_and_outside():
    """Cases 55 and 56: the recompute runs under the forward's contexts, whatever holds at the backward."""
    seen = []

    def inside(x, first, second):
        h = first(x)
        with torch.autocast("cpu", torch.float16):
            y = second(h)
        seen.append((h.dtype, y.dtype))
        return y

    torch.manual_seed(0)
    layers, x = (nn.Linear(3, 3), nn.Linear(3, 3)), torch.randn(2, 3)
    grads = []
    for f in (inside, unigrad.checkpoint(inside)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = f(x, *layers).float().square().sum()
        with torch.autocast("cpu", torch.float16):
            grads.append(torch.autograd.grad(loss, [layer.weight for layer in layers]))
    assert seen == [(torch.bfloat16, torch.float16)] * 3
    assert all(map(torch.equal, *grads))


def test_parameters_made_on_each_call_are_named():
    x = torch.ones(1, 2, requires_grad=True)
    for make, name in (
        (lambda t: nn.Linear(2, 2)(t), "Linear.weight"),
        (lambda t: t * nn.Parameter(t.detach()), "no module"),
    ):
        y = unigrad.checkpoint(make)(x).sum()
        with pytest.raises(CreatedParameterError, match=name):
            y.backward()


def test_no_hook_of_registration_stays():
    from torch.nn.modules import module

    x = leaf(1.0, 2.0)
    unigrad.checkpoint(function)(x).sum().backward()
    assert not module._global_parameter_registration_hooks


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def test_arguments_are_the_very_objects():
    """Case 40, and the same tensor twice."""
    weight = nn.Parameter(torch.ones(2))
    weight.tag = "mine"
    seen = []

    def takes(pair, twice, options):
        seen.append((options["w"] is weight, options["w"].tag, pair.left is twice))
        return (options["w"] * pair.left * pair.right * twice).sum()

    x = leaf(1.0, 2.0)
    unigrad.checkpoint(takes)(Pair(x, torch.ones(2)), x, options={"w": weight, "none": None}).backward()
    assert seen == [(True, "mine", True)] * 2
    assert weight.grad.tolist() == [1.0, 4.0]
    assert x.grad.tolist() == [2.0, 4.0]


def test_an_in_place_view_as_output():
    """Case 50."""
    p, x = nn.Parameter(torch.tensor(1.0)), torch.zeros(5, requires_grad=True)
    y = unigrad.checkpoint(lambda x: (x + p)[:].relu_())(x)
    grads = torch.autograd.grad(y.sum(), [p, x])
    assert [grad.tolist() for grad in grads] == [5.0, [1.0] * 5]


def test_inside_torch_func_it_is_refused():
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda x: unigrad.checkpoint(function)(x).sum())(torch.ones(2))


PLACES = [0, 1, 2047, 2048, 70_000, 99_998]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_fingerprints_tell_bits_apart(dtype):
    torch.manual_seed(0)
    x = torch.randn(99_999).to(dtype)
    mark = checkpoint.fingerprint(x)
    assert checkpoint.fingerprint(x.clone()) == mark
    for place in PLACES:
        other = x.clone()
        other[place] = -other[place]
        assert checkpoint.fingerprint(other) != mark, place
    swapped = x.clone()
    swapped[[3, 70_000]] = swapped[[70_000, 3]]
    assert checkpoint.fingerprint(swapped) != mark


def test_fingerprints_do_not_depend_on_strides():
    x = torch.randn(300, 301)
    marks = {checkpoint.fingerprint(value) for value in (x, x.t().contiguous().t(), torch.cat([x, x], 1)[:, :301])}
    assert len(marks) == 1
    assert checkpoint.fingerprint(x.t()) not in marks
    odd = torch.randn(90_000)[1:]
    assert checkpoint.fingerprint(odd) == checkpoint.fingerprint(odd.clone())


def test_fingerprints_tell_signs_of_zero_and_kinds_of_nan():
    bits = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    values = [torch.zeros(1), -torch.zeros(1), bits[:1], bits[1:], torch.zeros(0)]
    assert len({checkpoint.fingerprint(value) for value in values[:4]}) == 4
    assert checkpoint.fingerprint(values[4]) == checkpoint.fingerprint(torch.ones(0))

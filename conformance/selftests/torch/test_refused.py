"""What the torch backend refuses by name, beyond the capabilities it lacks, and in the compiler (clauses G13, G18, G19, C12, C13)."""

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as native

import unigrad
from unigrad.errors import UnsupportedError

X = torch.tensor([[1.0, 2.0], [3.0, 5.0]])


def enter(model):
    with unigrad.GradientCollector(model, on_unused="ignore"):
        pass


def test_a_reentrant_checkpoint_in_the_graph():
    model = nn.Linear(2, 1)
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        x = collector.watch(X, name="x")
        loss = native.checkpoint(model, x, use_reentrant=True).sum()
        with pytest.raises(UnsupportedError, match="use_reentrant=False"):
            collector.backward(loss)
        collector.backward(native.checkpoint(model, x, use_reentrant=False).sum())
    assert collector.gradients["weight"].tolist() == [[4, 7]]


def test_inference_mode():
    with torch.inference_mode(), pytest.raises(UnsupportedError, match="inference_mode"):
        enter(nn.Linear(2, 1))


@pytest.mark.filterwarnings("ignore")  # the compiler's own, about what it cannot compile
@pytest.mark.parametrize(
    "what", ["collector", "collector-later", "checkpoint", "microbatch", "model-with-a-checkpoint"]
)
def test_inside_the_compiler(what):
    """The compiler leaves to Python what it cannot compile; there it must be refused too."""
    model = nn.Linear(2, 1)
    rerun, parts = unigrad.checkpoint(model), unigrad.microbatch(model, 1)

    def later(x):
        y = torch.sin(x)
        enter(model)
        return model(y)

    inside = {
        "collector": lambda x: [enter(model), model(x)][1],
        "collector-later": later,
        "checkpoint": lambda x: rerun(x) + 1,
        "microbatch": lambda x: parts(x) + 1,
        "model-with-a-checkpoint": nn.Sequential(rerun, nn.Linear(1, 1)),
    }[what]
    torch._dynamo.reset()
    with pytest.raises(UnsupportedError, match=r"inside torch\.compile"):
        torch.compile(inside, backend="eager")(X)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", [False, True], ids=["breaks-allowed", "full-graph"])
def test_control_around_the_compiled_call_is_served(whole):
    """Also in one graph: what notes the uses of parameters doesn't stop the compiler."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    compiled = torch.compile(model, backend="eager", fullgraph=whole)
    for _ in range(3):
        with unigrad.GradientCollector(compiled) as collector:
            collector.backward(compiled(X).sum())
        assert collector.usage.reached == ("0.weight", "0.bias")
    assert not torch._dynamo.utils.counters["graph_break"]


def test_a_checkpoint_inside_a_transform_of_functions():
    run = unigrad.checkpoint(nn.Linear(2, 1))
    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        torch.func.grad(lambda x: run(x).sum())(X)


@pytest.mark.parametrize(
    "transform",
    [torch.func.grad, torch.func.vmap, torch.func.functionalize, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))],
    ids=["grad", "vmap", "functionalize", "jvp"],
)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("inside", [False, True], ids=["opened-outside", "opened-inside"])
def test_a_backward_inside_a_transform_of_functions(transform, inside):
    """There a loss hangs on a graph of the transform alone, in which no parameter is: the gradients would be none, in silence."""
    model = nn.Linear(2, 1)
    opened = unigrad.GradientCollector(model, on_unused="ignore")

    def loss(x, collector):
        value = model(x).sum()
        collector.backward(value)
        return value

    def whole(x):
        with opened as collector:
            return loss(x, collector)

    def around(x):
        with opened as collector:
            return transform(lambda x: loss(x, collector))(x)

    with pytest.raises(UnsupportedError, match=r"torch\.func"):
        (transform(whole) if inside else around)(X)
    assert not opened.gradients


def test_control_a_transform_inside_of_the_forward_is_served():
    model, twin = nn.Linear(2, 1), nn.Linear(2, 1)
    twin.load_state_dict(model.state_dict())

    def loss(module):
        slope = torch.func.grad(lambda x: module(x).tanh().sum())(X)
        return (module(X) * slope).sum()

    with unigrad.GradientCollector(model) as collector:
        collector.backward(loss(model))
    loss(twin).backward()
    for name, parameter in twin.named_parameters():
        assert torch.equal(collector.gradients[name], parameter.grad)


def test_a_checkpointed_function_that_changes_its_argument():
    model = nn.Linear(2, 1)

    def function(x):
        x.mul_(2)
        return model(x)

    with (
        unigrad.GradientCollector(model, on_unused="ignore"),
        pytest.raises(UnsupportedError, match=r"argument\[0\]\[0\] in place"),
    ):
        unigrad.checkpoint(function, blocks=[model])(X.clone())


class Slotted(nn.Module):
    __slots__ = ("other",)


def test_a_module_with_slots_has_no_double():
    with pytest.raises(UnsupportedError, match="__slots__"):
        unigrad.checkpoint(Slotted())


def test_an_optimizer_that_evaluates_the_loss_by_itself():
    model = nn.Linear(2, 1)
    optimizer = unigrad.Optimizer(model, torch.optim.LBFGS)
    with unigrad.GradientCollector(model) as collector:
        collector.backward(model(X).sum())
        with pytest.raises(UnsupportedError, match="LBFGS"):
            collector.apply(optimizer)


def test_control_what_is_like_the_refused_is_served():
    """Hooks before accumulation and other wrappers are no reason to refuse."""
    model = nn.Linear(2, 1)
    model.weight.register_hook(lambda gradient: None)
    with unigrad.GradientCollector(nn.DataParallel(model)) as collector:
        collector.backward(model(X).sum())
    assert collector.gradients["weight"].tolist() == [[4, 7]]

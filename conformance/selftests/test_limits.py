"""The known limits of docs/design.md, shown: a test here fails once its limit is gone, and the document is then to be changed."""

import re
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import unigrad

ROOT = Path(__file__).resolve().parents[2]
BATCH = np.array([[1, 2], [3, 5]], "float32")


def test_every_test_that_the_document_names_is_there():
    text = (ROOT / "docs" / "design.md").read_text()
    _, _, table = text.partition("## Known limits")
    named = re.findall(r"`((?:selftests/)?[\w/]*test_\w+\.py)`", table)
    assert len(named) >= 5
    conformance = ROOT / "conformance"
    for name in named:
        assert (conformance / name).exists() or (conformance / "unigrad_conformance" / "suite" / name).exists(), name


def test_a_hidden_change_that_no_output_shows_is_not_noticed():
    """The gradient at the forward's weight is 3; the input is 0, so the output is the same for any weight."""
    block = unigrad.wrap({"w": nn.Parameter(torch.tensor([3.0]))})
    run = unigrad.checkpoint(lambda x: block.parameters["w"] * x, blocks=[block])
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = run(collector.watch(torch.zeros(1), name="x")).sum()
        block.parameters["w"].data.mul_(2)
        collector.backward(loss)
    assert collector.input_gradients["x"].tolist() == [6]


class Inner(torch.autograd.Function):
    """Runs a layer unrecorded, and differentiates a graph of its own in the backward."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer, ctx.x = layer, x.detach()
        return layer(ctx.x)

    @staticmethod
    def backward(ctx, cotangent):
        with torch.enable_grad():
            x = ctx.x.requires_grad_()
            torch.autograd.backward(ctx.layer(x), cotangent)
        return x.grad, None


def test_parameters_inside_the_backward_of_an_operation_are_absent_and_told():
    layer = nn.Linear(2, 1)
    collector = unigrad.GradientCollector(layer)
    collector.__enter__()
    x = collector.watch(torch.tensor(BATCH), name="x")
    collector.backward(Inner.apply(x, layer).sum())
    with pytest.warns(unigrad.UnusedParameterWarning, match="weight, bias"):
        collector.__exit__(None, None, None)
    assert dict(collector.gradients) == {}
    assert collector.input_gradients["x"].shape == (2, 2)
    assert layer.weight.grad.tolist() == [[4, 7]]


def test_a_parameter_that_is_waited_for_is_of_a_subclass():
    layer = nn.Linear(2, 1)
    with unigrad.GradientCollector(layer) as collector:
        assert isinstance(layer.weight, nn.Parameter)
        assert type(layer.weight) is not nn.Parameter
        collector.backward(layer(torch.tensor(BATCH)).sum())
        assert type(layer.weight) is nn.Parameter


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_use_inside_a_compiled_model_is_not_seen():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept, self.dropped = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x):
            return self.kept(x), self.dropped(x)

    torch._dynamo.reset()
    model = Dropped()
    for call, told in ((model, "disconnected"), (torch.compile(model, backend="eager"), "unused")):
        with unigrad.GradientCollector(call, on_unused="ignore") as collector:
            collector.backward(call(torch.tensor(BATCH))[0].sum())
        assert collector.usage.reached == ("kept.weight", "kept.bias")
        assert getattr(collector.usage, told) == ("dropped.weight", "dropped.bias")


@pytest.mark.parametrize("inside", [False, True], ids=["itself", "as-a-part"])
def test_a_script_module_is_refused(inside):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Linear(2, 1))
    block = unigrad.wrap(nn.Sequential(scripted) if inside else scripted)
    with pytest.raises(unigrad.UnsupportedError, match=("'0'" if inside else "the model") + " is a TorchScript module"):
        _ = block.parameters


@pytest.mark.parametrize(
    ("function", "noticed"),
    [
        pytest.param(lambda x: x - x.mean(0), True, id="the-mean"),
        pytest.param(lambda x: x * x.shape[0], False, id="the-size"),
        pytest.param(lambda x: x + torch.arange(x.shape[0])[:, None], False, id="the-position"),
        pytest.param(lambda x: torch.cumsum(x, 0), True, id="later-on-earlier"),
    ],
)
def test_what_the_probe_of_microbatch_notices(function, noticed):
    x = torch.tensor(np.random.default_rng(0).standard_normal((4, 2)).astype("float32"))
    parts = unigrad.microbatch(function, 2, blocks=[], verify=True)
    if noticed:
        with pytest.raises(unigrad.BatchCoupledError):
            parts(x)
    else:
        assert not torch.allclose(parts(x), function(x))


def test_a_generator_of_numpy_allows_no_weak_reference():
    with pytest.raises(TypeError):
        weakref.ref(np.random.default_rng())


def test_a_captured_tensor_that_is_no_buffer_moves_again_in_the_recompute():
    mean, variance, scale = torch.zeros(2), torch.ones(2), nn.Parameter(torch.ones(2))

    def function(x):
        return nn.functional.batch_norm(x, mean, variance, scale, training=True, momentum=0.5)

    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    with unigrad.GradientCollector({"scale": scale}) as collector:
        collector.backward(unigrad.checkpoint(function, blocks=[])(x).sum())
    assert mean.tolist() == [1.5, 3.0]  # 1 and 2 after the forward

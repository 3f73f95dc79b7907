"""Cases of docs/cases.md that only means of Paddle's own can show: operations in place, a PyLayer, hooks, sparse tables."""

from typing import ClassVar

import numpy as np
import paddle
import pytest
from paddle import nn

import unigrad
from unigrad import StaleGraphError, UnsupportedError


def plain(function, blocks=None):
    return function


BOTH = pytest.mark.parametrize("checkpoint", [plain, unigrad.checkpoint], ids=["plain", "checkpoint"])


def leaf(*values):
    made = paddle.create_parameter([len(values)], "float32")
    made.set_value(np.array(values, "float32"))
    return made


@BOTH
@pytest.mark.parametrize("form", ["built-in", "composite"])
def test_case_19_an_element_replaced_in_place_is_right_or_an_error(checkpoint, form):
    a = leaf(1, 2, 3)

    def replaced(x):
        b = paddle.nn.functional.sigmoid(x) if form == "built-in" else 1 / (1 + (-x).exp())
        b[1] = 2.0
        return b.sum()

    run = checkpoint(replaced, blocks=[])
    with unigrad.GradientCollector({"a": a}) as collector:
        error = None
        try:
            collector.backward(run(a * 1.0))
        except StaleGraphError as raised:
            error = str(raised)
        if error is not None:
            assert "in place" in error
            assert not collector.gradients
        else:
            np.testing.assert_allclose(collector.gradients["a"].numpy(), [0.196612, 0, 0.045177], rtol=1e-5)


class Weighted(paddle.autograd.PyLayer):
    """A product that takes note of which of its inputs need a gradient, in forward and in backward."""

    asked: ClassVar[list] = []

    @staticmethod
    def forward(ctx, weight, x):
        ctx.save_for_backward(weight, x)
        Weighted.asked.append(("forward", not weight.stop_gradient, not x.stop_gradient))
        return (weight * x).sum()

    @staticmethod
    def backward(ctx, gradient):
        weight, x = ctx.saved_tensor()
        Weighted.asked.append(("backward", not weight.stop_gradient, not x.stop_gradient))
        return gradient * x, None


def test_case_39_a_custom_operation_is_asked_for_what_the_plain_run_asks():
    block = unigrad.wrap({"w": leaf(3, 4)})
    x = paddle.to_tensor([1.0, 2.0])
    asked = []
    for checkpoint in (plain, unigrad.checkpoint):
        Weighted.asked.clear()
        run = checkpoint(lambda data: Weighted.apply(block.parameters["w"], data), blocks=[block])
        with unigrad.GradientCollector(block) as collector:
            collector.backward(run(x))
        assert collector.gradients["w"].tolist() == [1, 2]
        assert x.grad is None
        asked.append(list(Weighted.asked))
    assert asked[0] == [("forward", True, False), ("backward", True, False)]
    assert asked[1] == [asked[0][0], *asked[0]]


@BOTH
def test_case_40_a_parameter_as_an_argument_keeps_what_belongs_to_it(checkpoint):
    weight = leaf(3, 4)
    weight.tag = "mine"
    weight.accumulator = paddle.zeros([2])

    def accumulate(gradient):
        weight.accumulator = weight.accumulator + gradient

    weight.register_hook(accumulate)
    seen = []

    def product(parameter, x):
        seen.append((parameter is weight, parameter.name, parameter.tag))
        return (parameter * x).sum()

    with unigrad.GradientCollector({"w": weight}) as collector:
        collector.backward(checkpoint(product, blocks=[])(weight, paddle.to_tensor([1.0, 2.0])))
    assert set(seen) == {(True, weight.name, "mine")}
    assert len(seen) == (1 if checkpoint is plain else 2)
    assert collector.gradients["w"].tolist() == [1, 2]
    assert weight.accumulator.tolist() == [1, 2]
    assert weight.grad is None


@BOTH
def test_case_50_a_slice_changed_in_place_is_still_connected(checkpoint):
    block = unigrad.wrap({"p": leaf(1)})
    run = checkpoint(lambda x: paddle.nn.functional.relu_((x + block.parameters["p"])[0:5]), blocks=[block])
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(paddle.zeros([5]), name="x")
        collector.backward(run(x).sum())
    assert collector.gradients["p"].tolist() == [5]
    assert collector.input_gradients["x"].tolist() == [1] * 5


def test_case_50_normalization_and_a_relu_in_place_at_the_end_of_a_region():
    model = nn.Sequential(nn.Conv2D(1, 2, 1), nn.InstanceNorm2D(2))

    def last(x):
        return paddle.nn.functional.relu(model(x))

    def in_place(x):
        return paddle.nn.functional.relu_(model(x))

    found = []
    for run in (last, in_place, unigrad.checkpoint(in_place, blocks=[model])):
        with unigrad.GradientCollector(model) as collector:
            x = collector.watch(paddle.arange(16, dtype="float32").reshape([1, 1, 4, 4]), name="x")
            collector.backward((run(x) * paddle.arange(32, dtype="float32").reshape([1, 2, 4, 4])).sum())
        found.append({**collector.gradients, **collector.input_gradients})
    assert sorted(found[0]) == ["0.bias", "0.weight", "1.bias", "1.weight", "x"]
    for other in found[1:]:
        assert sorted(other) == sorted(found[0])
        assert all(other[name].numpy().tobytes() == value.numpy().tobytes() for name, value in found[0].items())


def test_case_52_a_hook_of_a_parameter_fires_once_a_backward_with_the_whole_sum():
    weight = leaf(3)
    told = []
    weight.register_hook(lambda gradient: told.append(gradient.item()))
    block = unigrad.wrap({"w": weight})
    run = unigrad.checkpoint(lambda t: weight * t, blocks=[block])
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        x = collector.watch(paddle.to_tensor([2.0]), name="x")
        loss = run(run(x))
        collector.backward(loss, retain_graph=True)
        assert told == [12]
        collector.backward(loss)
    assert told == [12, 12]
    assert collector.gradients["w"].tolist() == [24]
    assert collector.input_gradients["x"].tolist() == [18]


@pytest.mark.parametrize("where", ["captured", "argument", "layer"])
def test_case_52_a_hook_that_replaces_the_gradient_does_so_once(where):
    """Also where nothing stands in for the parameter in the recompute, and inside of another region."""
    model = nn.Linear(1, 1, bias_attr=False)
    weight = model.weight
    weight.set_value(np.array([[3.0]], "float32"))
    weight.register_hook(lambda gradient: gradient * 10)
    told = []
    weight._register_backward_hook(lambda: told.append(1))
    x = paddle.to_tensor([[2.0]])
    if where == "captured":
        run = unigrad.checkpoint(lambda t: t * weight, blocks=[])
        form = unigrad.checkpoint(lambda t: run(run(t)), blocks=[])
    elif where == "argument":
        run = unigrad.checkpoint(lambda t, w: t * w, blocks=[])
        outer = unigrad.checkpoint(lambda t, w: run(run(t, w), w), blocks=[])
        form = lambda t: outer(t, weight)  # noqa: E731
    else:
        run = unigrad.checkpoint(model)
        form = unigrad.checkpoint(lambda t: run(run(t)), blocks=[model])
    with unigrad.GradientCollector({"w": weight}) as collector:
        collector.backward(form(x))
    assert collector.gradients["w"].tolist() == [[120]]
    assert told == [1]
    form(x).backward()
    assert weight.grad.tolist() == [[120]]
    assert told == [1, 1]


@pytest.mark.filterwarnings("ignore:amp_guard can only be enabled")
@BOTH
def test_case_58_a_hook_in_backward_sees_what_it_sees_in_the_plain_run(checkpoint):
    """On a CPU a context of mixed precision computes in float32, so that dtype is seen."""
    layer = nn.Linear(2, 2, bias_attr=False)
    run = checkpoint(layer)
    seen = []

    def hook(gradient):
        seen.append((gradient.dtype, (gradient @ gradient.transpose([1, 0])).dtype))
        return gradient * 1

    with unigrad.GradientCollector(layer) as collector:
        x = collector.watch(paddle.ones([1, 2]), name="x")
        x.register_hook(hook)
        with paddle.amp.auto_cast(dtype="bfloat16"):
            y = run(x)
        collector.backward(y.sum())
    assert y.dtype == paddle.float32
    assert seen == [(paddle.float32, paddle.float32)]


@pytest.mark.parametrize("indices", [[0, 0, 2], [1]])
def test_case_86_a_sparse_table_is_refused_by_name(indices):
    """Its rows are neither copied nor summed; the values of the case hold for a dense one."""
    weight = paddle.create_parameter([4, 2], "float32", default_initializer=nn.initializer.Constant(1.0))
    rows = paddle.to_tensor(indices)
    with unigrad.GradientCollector({"weight": weight}, accumulate="add") as collector:
        with pytest.raises(UnsupportedError, match="sparse"):
            collector.backward(nn.functional.embedding(rows, weight, sparse=True).sum())
        assert not collector.gradients
        assert weight.grad is None
        collector.backward(nn.functional.embedding(rows, weight).sum())
    wanted = np.zeros((4, 2))
    np.add.at(wanted, indices, 1)
    assert collector.gradients["weight"].tolist() == wanted.tolist()


def test_case_87_a_sparse_lookup_in_a_checkpoint_is_refused_by_name():
    weight = paddle.create_parameter([4, 2], "float32", default_initializer=nn.initializer.Constant(1.0))
    rows = paddle.to_tensor([0, 0, 2])
    block = unigrad.wrap({"weight": weight})

    def loss(sparse):
        run = unigrad.checkpoint(lambda ids: nn.functional.embedding(ids, weight, sparse=sparse), blocks=[block])
        return run(rows).sum() + (weight * weight).sum()

    with unigrad.GradientCollector(block) as collector:
        with pytest.raises(UnsupportedError, match="sparse"):
            collector.backward(loss(True))
        assert not collector.gradients
        assert weight.grad is None
        collector.backward(loss(False))
    assert collector.gradients["weight"].tolist() == [[4, 4], [2, 2], [3, 3], [2, 2]]

"""Paddle's own engine writes into every leaf: what unigrad takes, and what must be as it was (clauses G3, G4, G13 to G15)."""

import gc

import numpy as np
import paddle
import pytest
from paddle import nn
from unigrad_paddle import leaves, marks
from unigrad_paddle.framework import node_of, operations

import unigrad
from unigrad import (
    ArgumentError,
    ArgumentTypeError,
    CapturedTensorError,
    GraphReleasedError,
    StaleGraphError,
    UnsupportedError,
)

X = paddle.to_tensor([[1.0, 2.0], [3.0, 5.0]])


def collector_of(block, accumulate="write", **options):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **options)


def leaf(*values):
    made = paddle.create_parameter([len(values)], "float32")
    made.set_value(np.array(values, "float32"))
    return made


def stood_before(*parameters):
    """Give each parameter a gradient of its own, and return their values."""
    for number, parameter in enumerate(parameters):
        parameter.grad = paddle.full(parameter.shape, 7.0 + number)
    return [parameter.grad.numpy() for parameter in parameters]


def same(parameters, values):
    for parameter, value in zip(parameters, values, strict=True):
        assert parameter.grad.numpy().tobytes() == value.tobytes()


def test_gradients_that_stood_in_grad_are_as_they_were():
    """G4: own ones, those of another block that the loss reaches, and those of a leaf of no block."""
    own, other, loose = nn.Linear(2, 2), nn.Linear(2, 2), leaf(1, 2)
    unigrad.wrap(other)
    parameters = [*own.parameters(), *other.parameters(), loose]
    before = stood_before(*parameters)
    with collector_of(own) as collector:
        collector.backward(other(own(X)).sum())
        collector.backward((other(own(X)) * loose).sum())
    assert list(collector.gradients) == ["weight", "bias"]
    same(parameters, before)


def test_a_failing_backward_changes_nothing():
    """G3, G15: one head over a trunk that was released natively; its own head keeps its gradient, and recording is on."""
    trunk, first, second = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(2, 1)
    block = unigrad.join(trunk=trunk, first=first, second=second)
    hidden = trunk(X)
    losses = first(hidden).sum(), second(hidden).sum()
    losses[0].backward()
    parameters = [*trunk.parameters(), *first.parameters(), *second.parameters()]
    before = stood_before(*parameters)
    with collector_of(block) as collector:
        with pytest.raises(GraphReleasedError):
            collector.backward(losses[1])
        assert not collector.gradients
    same(parameters, before)


def test_a_hook_of_a_parameter_runs_once_and_may_replace_the_gradient():
    """G13."""
    seen = []
    weight = leaf(1, 2)
    weight.register_hook(lambda gradient: seen.append(gradient.numpy()) or gradient * 10)
    with collector_of({"w": weight}) as collector:
        collector.backward((weight * weight).sum())
    assert [value.tolist() for value in seen] == [[2, 4]]
    assert collector.gradients["w"].tolist() == [20, 40]


def test_a_hook_of_a_parameter_in_a_checkpoint_runs_once():
    seen = []
    model = nn.Linear(2, 1)
    model.weight.register_hook(lambda gradient: seen.append(1))
    with collector_of(model) as collector:
        collector.backward(unigrad.checkpoint(model)(X).sum())
    assert seen == [1]


def test_a_hook_of_a_parameter_does_not_run_beside_a_leaf_of_no_block():
    """A limit: paddle.grad, which then serves, runs no hooks of leaves, and nobody can ask a tensor for its hooks."""
    seen = []
    weight, loose = leaf(1, 2), leaf(3, 4)
    weight.register_hook(lambda gradient: seen.append(1))
    with collector_of({"w": weight}) as collector:
        collector.backward((weight * loose).sum())
        assert seen == []
        collector.watch(loose, "loose")  # it is known now
        collector.backward((weight * loose).sum())
    assert seen == [1]
    assert loose.grad is None


def test_a_graph_with_a_region_is_freed_with_its_loss():
    """A limit: a recompute may fail, and the same backward is to work again, so what lies outside of regions is kept so long."""

    def alive_after_backward(run):
        weight = leaf(*range(1000))
        with collector_of({"w": weight}) as collector:
            before = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
            loss = run(weight * 1.0, weight).exp().sum()
            collector.backward(loss)
            gradient = collector.gradients.values()
            del gradient
            held = paddle.base.core.host_memory_stat_current_value("Allocated", 0) - before
            del loss
            left = paddle.base.core.host_memory_stat_current_value("Allocated", 0) - before
        return held - left

    def product(x, weight):
        return x * weight

    assert alive_after_backward(product) < 1000 < alive_after_backward(unigrad.checkpoint(product, blocks=[]))


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["hook", "after accumulation", "PyLayer"])
def test_what_a_user_s_function_raises_in_a_backward_is_raised(kind, where):
    """C11, G15: Paddle hands on its text only, as an OSError; recording stays on and nothing is collected."""
    weight = leaf(1, 2)

    def fail(*gradient):
        raise kind("own")

    class Fails(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, a):
            return a * 1.0

        backward = staticmethod(lambda ctx, gradient: fail())

    hidden = Fails.apply(weight) if where == "PyLayer" else weight * 1.0
    if where == "hook":
        hidden.register_hook(fail)
    if where == "after accumulation":
        weight._register_backward_hook(fail)
    with collector_of({"w": weight}) as collector:
        with pytest.raises(kind, match="own"):
            collector.backward(hidden.sum())
        assert not collector.gradients
    assert weight.grad is None
    assert paddle.is_grad_enabled()


def test_a_mark_lives_as_long_as_its_node():
    """G3, G15: nothing is left of a thousand released graphs."""
    weight = leaf(1, 2)
    gc.collect()
    before = marks.RELEASED.sweep()
    for _ in range(100):
        with collector_of({"w": weight}) as collector:
            loss = (weight * weight + weight).sum()
            collector.backward(loss)
            with pytest.raises(GraphReleasedError):
                collector.backward(loss)
        del loss
    gc.collect()
    assert marks.RELEASED.sweep() == before


def test_looking_at_a_node_does_not_keep_the_graph():
    """Paddle leaves a reference with each look at grad_fn; the control shows that it does."""

    def bytes_left(look):
        weight = leaf(*range(1000))
        before = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
        loss = weight.exp().square().sum()
        look(loss)
        del loss
        gc.collect()
        return paddle.base.core.host_memory_stat_current_value("Allocated", 0) - before

    assert bytes_left(node_of) < 4000 <= bytes_left(lambda loss: loss.grad_fn)


def test_leaves_are_known_as_long_as_they_live():
    weight = leaf(1, 2)
    with collector_of({"w": weight}):
        pass
    known = len(leaves._tensors)
    del weight
    gc.collect()
    assert len(leaves._tensors) == known - 1


def test_operations_are_looked_at_only_while_a_use_is_awaited():
    """The operations are Paddle's own again after the last use, and after leaving."""
    plain = operations()["matmul"], paddle.Tensor.__add__
    model = nn.Linear(2, 1)
    with collector_of(model):
        assert paddle._C_ops.matmul is not plain[0]
        model(X)
        assert paddle._C_ops.matmul is plain[0]
    with collector_of(model):
        pass
    assert (paddle._C_ops.matmul, paddle.Tensor.__add__) == plain


def test_a_step_of_ours_is_noticed_by_an_older_graph():
    """G14: Paddle's own step counts up no version, ours does."""
    weight = leaf(1, 2)
    optimizer = unigrad.Optimizer({"w": weight}, lambda parameters: paddle.optimizer.SGD(0.1, parameters))
    with collector_of({"w": weight}) as collector:
        loss = (weight * weight).sum()
        collector.backward(loss, retain_graph=True)
        collector.apply(optimizer)
        with pytest.raises(StaleGraphError):
            collector.backward(loss)


def test_gradients_of_gradients():
    """G17: the second derivative of a cube."""
    weight = leaf(2, 3)
    with collector_of({"w": weight}) as collector:
        collector.backward((weight**3).sum(), create_graph=True)
        collector.backward((collector.gradients["w"] ** 2).sum())
    # (3 w^2)^2 has the derivative 36 w^3
    assert collector.gradients["w"].tolist() == [36 * 8, 36 * 27]


def test_second_order_through_a_checkpoint_is_refused_before_anything_runs():
    weight = leaf(2, 3)
    calls = []

    def cube(x):
        calls.append(1)
        return x**3

    with collector_of({"w": weight}) as collector:
        loss = unigrad.checkpoint(cube, blocks=[])(weight * 1.0).sum()
        with pytest.raises(UnsupportedError, match="second order"):
            collector.backward(loss, create_graph=True)
        assert calls == [1]
        collector.backward(loss)
    assert collector.gradients["w"].tolist() == [12, 27]


NATIVELY = {
    "Tensor.backward": lambda run: run(X).sum().backward(),
    "paddle.grad": lambda run: paddle.grad(run(_input()).sum(), _input.made),
    "a region in a region": lambda run: (
        unigrad.checkpoint(lambda x: run(x) * 2.0, blocks=[])(_input()).sum().backward()
    ),
    "incubate.autograd.vjp": lambda run: paddle.incubate.autograd.vjp(run, X),
}


def _input():
    _input.made = leaf(1, 2)
    return _input.made * 1.0


@pytest.mark.parametrize("how", NATIVELY)
def test_what_a_recompute_raises_keeps_its_type_in_a_backward_of_paddle_s_own(how):
    """C11: Paddle hands on the text of what a hook raises, as an OSError."""
    weight = leaf(2, 3)
    calls = []

    def fails(x):
        calls.append(1)
        if len(calls) % 2 == 0:
            raise KeyError("own")
        return x * weight

    run = unigrad.checkpoint(fails, blocks=[{"w": weight}])
    with collector_of({"w": weight}) as collector, pytest.raises(KeyError, match="own"):
        collector.backward(run(X).sum())
    with pytest.raises(KeyError, match="own"):
        NATIVELY[how](run)
    assert weight.grad is None
    assert paddle.is_grad_enabled()


@pytest.mark.parametrize("how", ["jvp", "Jacobian", "Hessian"])
def test_second_order_of_incubate_through_a_checkpoint_is_refused_by_name(how):
    """C12: they take gradients of gradients, whatever they return."""
    weight = leaf(2, 3)
    run = unigrad.checkpoint(lambda x: (x * weight).tanh(), blocks=[{"w": weight}])
    calls = {
        "jvp": lambda: paddle.incubate.autograd.jvp(run, X),
        "Jacobian": lambda: paddle.incubate.autograd.Jacobian(run, X)[:],
        "Hessian": lambda: paddle.incubate.autograd.Hessian(lambda x: run(x).sum(), X)[:],
    }
    with pytest.raises(UnsupportedError, match="second order"):
        calls[how]()
    assert weight.grad is None


def test_a_hook_of_the_user_s_is_left_to_paddle_outside_of_a_collector():
    """The control: only what a region raises is this library's."""

    def fails(gradient):
        raise KeyError("own")

    hidden = leaf(1, 2) * 2.0
    hidden.register_hook(fails)
    with pytest.raises(OSError, match=r"KeyError.*own"):
        hidden.sum().backward()


@pytest.mark.parametrize("collected", [True, False], ids=["collector", "natively"])
@pytest.mark.parametrize("kind", ["linear", "lstm", "nested", "parts", "function"])
def test_hooks_of_parameters_in_a_region_run_once_for_each_backward(kind, collected):
    """Not once for each recompute, nor for each part; an LSTM is run with its real weights."""
    model = nn.LSTM(2, 1) if kind == "lstm" else nn.Linear(2, 1)
    told = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: told.append((name, gradient.numpy())))
        parameter._register_backward_hook(lambda name=name: told.append(f"after {name}"))
    inner = unigrad.checkpoint(model)
    runs = {
        "linear": inner,
        "lstm": lambda x: unigrad.checkpoint(model)(x)[0],
        "nested": unigrad.checkpoint(lambda x: inner(x) + inner(x * 2.0), blocks=[model]),
        "parts": unigrad.microbatch(model, 1),
        "function": unigrad.checkpoint(lambda x: nn.functional.linear(x, model.weight, model.bias), blocks=[]),
    }
    plain = {"lstm": lambda x: model(x)[0], "nested": lambda x: model(x) + model(x * 2.0)}.get(kind, model)
    x = paddle.to_tensor([[[1.0, 2.0], [3.0, 4.0]]] if kind == "lstm" else [[1.0, 2.0], [3.0, 4.0]])
    plain(x).sum().backward()
    expected, told[:] = list(told), []
    for parameter in model.parameters():
        parameter.clear_gradient(False)
    loss = runs[kind](x).sum()
    with collector_of(model) as collector:
        if collected:
            loss = runs[kind](x).sum()
        backward = (
            collector.backward if collected else lambda one, retain_graph=False: one.backward(retain_graph=retain_graph)
        )
        for retain in (True, False):
            backward(loss, retain_graph=retain)
            names = sorted(one if isinstance(one, str) else one[0] for one in told)
            assert names == sorted(one if isinstance(one, str) else one[0] for one in expected)
            values = dict(one for one in told if not isinstance(one, str))
            for name, value in (one for one in expected if not isinstance(one, str)):
                # Sums of a few products, part by part.
                np.testing.assert_allclose(values[name], value, rtol=1e-5)
            told.clear()


@pytest.mark.parametrize("retained", [False, True])
def test_a_region_gives_its_arguments_back_in_the_last_backward_of_paddle_s_own(retained):
    """C4: without a collector too; a graph that is retained keeps them, and serves again."""
    weight = leaf(2, 3)
    run = unigrad.checkpoint(lambda x: (x * weight).sin(), blocks=[{"w": weight}])

    def held():
        return paddle.base.core.host_memory_stat_current_value("Allocated", 0)

    x = paddle.ones([1000, 2])
    before = held()
    loss = run(x * 1.0).sum()
    forward = held() - before
    loss.backward(retain_graph=retained)
    left = held() - before
    # The product with one, 2000 numbers, is the region's argument; the gradient of the weight has come instead.
    assert (forward - left > 7000) is not retained
    if retained:
        first = weight.grad.numpy()
        loss.backward()
        assert np.array_equal(weight.grad.numpy(), 2 * first)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_refused_by_name(dtype):
    """C9, G12: a CPU has no kernels of most layers for it."""
    model = nn.Linear(2, 1)
    model.to(dtype=dtype)
    with pytest.raises(UnsupportedError, match=f"{dtype}.*matmul"), collector_of(model):
        raise AssertionError
    with pytest.raises(UnsupportedError, match=dtype):
        unigrad.checkpoint(model)(X)


def test_a_sparse_embedding_is_refused_by_name():
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(UnsupportedError, match=r"'0'.*sparse=False"), collector_of(model):
        raise AssertionError


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_collector_inside_a_compiled_step_is_refused():
    """G19. Paddle's compiler warns of what it makes of the code of the library."""
    model = nn.Linear(2, 1)
    raised = []

    class Step(nn.Layer):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            try:
                unigrad.GradientCollector(model).__enter__()
            except UnsupportedError as error:
                raised.append(str(error))
            return self.model(x)

    paddle.jit.to_static(Step(), full_graph=True)(X)
    assert raised
    assert "to_static" in raised[0]


@pytest.mark.parametrize("where", ["hook", "leaf", "PyLayer"])
def test_a_gradient_of_another_shape_is_an_error(where):
    """G6, G12: Paddle takes it without a word, and hands it on."""
    weight = leaf(1, 2)

    class Wrong(paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, a):
            return a * 1.0

        @staticmethod
        def backward(ctx, gradient):
            return paddle.ones([3, 3])

    hidden = Wrong.apply(weight) if where == "PyLayer" else weight * 1.0
    if where != "PyLayer":
        (hidden if where == "hook" else weight).register_hook(lambda gradient: paddle.ones([3, 3]))
    with collector_of({"w": weight}) as collector:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=r"\(3, 3\).*\(2,\)"):
            collector.backward(hidden.sum())
        assert not collector.gradients
    assert weight.grad is None


def test_an_empty_batch_is_refused_by_name():
    """M3, G11: Paddle's kernels have no backward for it; a weight of 0 computes nothing and works."""
    model = nn.Linear(2, 1)
    for run in (model, unigrad.checkpoint(model)):
        with collector_of(model, "add") as collector, pytest.raises(UnsupportedError, match="empty batch"):
            collector.backward(run(X[:0]).sum())
        with collector_of(model, "add") as collector:
            collector.backward(run(X).mean(), weight=2)
            collector.backward(run(X[:0]).mean(), weight=0)
        assert collector.gradients["weight"].flatten().tolist() == [2, 3.5]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_program_that_ran_outside_of_a_collector_is_released():
    """G3: it runs backward once."""
    model = paddle.jit.to_static(nn.Linear(2, 1), full_graph=True)
    loss = model(X).sum()
    loss.backward(retain_graph=True)
    model.clear_gradients(False)
    with collector_of(model) as collector, pytest.raises(GraphReleasedError, match="to_static"):
        collector.backward(loss)
    assert model.weight.grad is None


@pytest.mark.parametrize("form", ["second order", "own leaf"])
def test_a_leaf_that_a_region_makes_itself_is_refused(form):
    """C10, a limit: it can't be told from a captured tensor; a graph of gradients has one too, made by Paddle."""
    weight = leaf(1, 2)

    def product(x):
        if form == "own leaf":
            x = x.detach()
            x.stop_gradient = False
            return x * weight
        y = (x * weight).tanh()
        (found,) = paddle.grad(y.sum(), weight, create_graph=True)
        return y * found

    with collector_of({"w": weight}) as collector:
        with pytest.raises(CapturedTensorError, match="made in it"):
            unigrad.checkpoint(product, blocks=[{"w": weight}])(paddle.ones([2]))
        assert not collector.gradients
        collector.backward(product(paddle.ones([2])).sum())
        assert "w" in collector.gradients


def test_a_hook_of_saved_tensors_that_raises_in_a_region_leaves_recording_on():
    """G15: in plain Paddle it is off afterwards, and later losses have no graph."""
    weight = leaf(1, 2)
    run = unigrad.checkpoint(lambda x: x * weight, blocks=[{"w": weight}])

    def fail(tensor):
        raise KeyError("own")

    with collector_of({"w": weight}) as collector:
        with pytest.raises(OSError, match="own"), paddle.autograd.saved_tensors_hooks(fail, lambda kept: kept):
            run(X)
        assert paddle.is_grad_enabled()
        collector.backward(run(X).sum())
    assert collector.gradients["w"].tolist() == [4, 7]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_a_recurrent_layer_in_eval_mode_is_named_in_the_error(kind):
    """Its operation keeps nothing for a backward then, and Paddle says so in the words of a program that has run."""
    layer = getattr(paddle.nn, kind)(3, 4)
    layer.eval()
    with unigrad.GradientCollector(layer) as collector, pytest.raises(unigrad.GraphReleasedError, match="in eval mode"):
        collector.backward(layer(paddle.ones([2, 5, 3]))[0].sum())

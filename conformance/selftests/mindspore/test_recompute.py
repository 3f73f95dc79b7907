"""A checkpoint of unigrad's own: dropout replayed, statistics once, captured tensors found (clauses C0 to C13, M4)."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import unigrad
from unigrad.errors import CapturedTensorError, UnsupportedError

X = np.random.default_rng(0).standard_normal((8, 6)).astype("float32")


def tensor(values=X):
    return Tensor(np.array(values, "float32"))


def network(seed=0):
    mindspore.set_seed(seed)
    parts = nn.Dense(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(p=0.5), nn.Dense(16, 6)
    return nn.SequentialCell(*parts).set_train()


def differentiate(block, call):
    unigrad.seed(3)
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(tensor(), name="x")
        loss = (call(x) ** 2).sum()
        collector.backward(loss)
    values = dict(collector.gradients) | dict(collector.input_gradients) | {"loss": loss}
    return {name: value.asnumpy().copy() for name, value in values.items()} | block.state()


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), name


DRAWS = {
    "nn.Dropout": lambda x: nn.Dropout(p=0.5).set_train()(x),
    "ops.dropout": lambda x: ops.dropout(x, 0.5),
    "standard_normal": lambda x: x * ops.standard_normal(x.shape),
    "rand": lambda x: x * ops.rand(*x.shape),
    "uniform": lambda x: x * ops.uniform(x.shape, Tensor(0.5), Tensor(1.5)),
    "normal": lambda x: x * ops.normal(x.shape, Tensor(0.0), Tensor(1.0)),
    "laplace": lambda x: x * ops.laplace(x.shape, Tensor(0.0), Tensor(1.0)),
    "randint": lambda x: x * ops.randint(0, 9, x.shape).astype(mindspore.float32),
    "bernoulli": lambda x: x * ops.bernoulli(ops.ones_like(x) * 0.5),
    "gumbel_softmax": lambda x: ops.gumbel_softmax(x),
    "multinomial": lambda x: x * ops.multinomial(tensor([1, 2, 3]), 6, replacement=True).astype(mindspore.float32),
    "shuffle": lambda x: x * ops.shuffle(tensor(range(8))).reshape(8, 1),
}


@pytest.mark.parametrize("what", DRAWS)
def test_a_random_operation_draws_the_same_in_the_recompute_and_anew_in_the_next_call(what):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(6, 6)

        def construct(self, x):
            return DRAWS[what](ops.tanh(self.dense(x)))

    block = unigrad.wrap(Net())
    same(differentiate(block, block), differentiate(block, unigrad.checkpoint(block)))
    assert (block(tensor()).asnumpy() != block(tensor()).asnumpy()).any()
    unigrad.seed(5)
    first = block(tensor()).asnumpy()
    unigrad.seed(5)
    assert first.tobytes() == block(tensor()).asnumpy().tobytes()


def test_a_network_with_dropout_and_statistics_is_the_plain_one_to_the_bit():
    plain, rerun = unigrad.wrap(network()), unigrad.wrap(network())
    same(differentiate(plain, plain), differentiate(rerun, unigrad.checkpoint(rerun)))


def test_the_control_mindspores_own_recompute_moves_the_statistics_twice():
    moved = []
    for recompute in (False, True):
        model = nn.SequentialCell(nn.Dense(6, 6, has_bias=False), nn.BatchNorm1d(6)).set_train()
        model[0].weight.set_data(tensor(np.eye(6)))
        mean = model[1].moving_mean
        call = (lambda x, model=model: mindspore.recompute(model, x)) if recompute else model
        mindspore.grad(lambda x, call=call: (call(x) ** 2).sum())(tensor())
        moved.append(mean.asnumpy().copy())
    np.testing.assert_allclose(moved[1] / moved[0], 1.9, rtol=1e-4)


def test_it_works_under_value_and_grad_too():
    found = []
    for wrap in (lambda model: model, unigrad.checkpoint):
        mindspore.set_seed(1)
        model = nn.SequentialCell(nn.Dense(6, 6), nn.BatchNorm1d(6), nn.Tanh()).set_train()
        run, weights = wrap(model), model.trainable_params()
        value, gradients = mindspore.value_and_grad(lambda x, run=run: (run(x) ** 2).sum(), None, weights)(tensor())
        found.append([one.asnumpy().copy() for one in (value, *gradients, model[1].moving_mean)])
    for plain, rerun in zip(*found, strict=True):
        assert plain.tobytes() == rerun.tobytes()


def test_second_order_through_it_is_refused_natively_too():
    rerun = unigrad.checkpoint(nn.SequentialCell(nn.Dense(6, 6), nn.Tanh()))

    def inner(x):
        return (mindspore.grad(lambda y: rerun(y).sum())(x) ** 2).sum()

    with pytest.raises(UnsupportedError, match="second order"):
        mindspore.grad(inner)(tensor())


def test_a_native_gradient_call_after_one_that_failed_says_what_to_do():
    """MindSpore leaves recording on when the function that it differentiates raises, which looks like second order."""
    weight = Parameter(tensor(), name="weight")
    rerun = unigrad.checkpoint(lambda x: ops.tanh(x * weight), blocks=[{"weight": weight}])

    def fails(x):
        raise ZeroDivisionError

    def gradient():
        return mindspore.grad(lambda x: rerun(x).sum())(tensor()).asnumpy()

    expected = gradient()
    with pytest.raises(ZeroDivisionError):
        mindspore.grad(fails)(tensor())
    with pytest.raises(UnsupportedError, match="call again"):
        gradient()
    np.testing.assert_array_equal(gradient(), expected)


@pytest.mark.parametrize("name", ["Dropout2D", "Dropout3D"])
def test_a_random_operation_without_seeds_is_refused_inside_and_works_outside(name):
    layer = {"Dropout2D": nn.Dropout2d, "Dropout3D": nn.Dropout3d}[name](p=0.5)
    shape = (2, 3, 4, 4) if name == "Dropout2D" else (2, 3, 4, 4, 4)
    x = tensor(np.ones(shape))
    model = nn.SequentialCell(layer).set_train()
    leaf = {"w": Parameter(tensor([2]), name="w")}
    with unigrad.GradientCollector(leaf) as collector:
        with pytest.raises(UnsupportedError, match=name):
            unigrad.checkpoint(model)(x * leaf["w"])
        collector.backward(model(x * leaf["w"]).sum())


@pytest.mark.parametrize("through", ["an operation", "a slice", "a join"])
def test_a_captured_tensor_is_found(through):
    w = Parameter(tensor(X), name="w")
    part = {"an operation": lambda h: h, "a slice": lambda h: h[:, :6], "a join": lambda h: ops.concat([h, h])[:8]}
    with unigrad.GradientCollector({"w": w}, on_unused="ignore"):
        hidden = w * 2.0
        with pytest.raises(CapturedTensorError, match=r"'hidden'"):
            unigrad.checkpoint(lambda x: x + part[through](hidden))(tensor())


def test_a_jitted_part_of_a_region_is_recomputed_rightly():
    @mindspore.jit
    def cube(x):
        return x * x * x

    block = unigrad.wrap(nn.Dense(6, 6))
    run = unigrad.checkpoint(lambda x: ops.tanh(cube(block(x))), blocks=[block])
    same(differentiate(block, lambda x: ops.tanh(cube(block(x)))), differentiate(block, run))


def test_custom_functions_in_a_region():
    class Square(mindspore._Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2.0 * x * gradient

    block = unigrad.wrap(nn.Dense(6, 6))
    run = unigrad.checkpoint(lambda x: Square.apply(ops.tanh(block(x))), blocks=[block])
    same(differentiate(block, lambda x: Square.apply(ops.tanh(block(x)))), differentiate(block, run))


def test_a_cell_with_slots_is_refused_as_they_could_not_be_shared():
    class Slotted(nn.Cell):
        __slots__ = ("factor",)

        def construct(self, x):
            return x * self.factor

    cell = Slotted()
    with pytest.raises(UnsupportedError, match=r"Slotted declares __slots__.*unigrad\.checkpoint\(function"):
        unigrad.checkpoint(cell)

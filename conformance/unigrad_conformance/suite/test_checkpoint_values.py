"""Checkpoint: loss, gradients and random stream have the bits of the plain run."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, build_and_compare, step, total


def _stack(samples, *layers):
    return samples.layer("sequential", layers=list(layers))


def _convolution(samples):
    return _stack(
        samples,
        samples.layer("conv2d", weight=array(3, 2, 3, 3), bias=array(3), stride=1, padding=1),
        samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True),
        samples.layer("relu"),
        samples.layer("max_pool2d", size=2),
        samples.layer("flatten"),
        dense(samples, 12, 2),
    )


def _recurrent(samples, kind, gates):
    return samples.layer(
        kind,
        input_weight=array(gates * 3, 2),
        hidden_weight=array(gates * 3, 3),
        input_bias=array(gates * 3, seed=1),
        hidden_bias=array(gates * 3, seed=2),
    )


MODELS = {
    "dense": (lambda samples: mlp(samples, 3, 5, 2), [array(4, 3)]),
    "dropout": (lambda samples: mlp(samples, 3, 8, 8, 2, rate=0.5), [array(4, 3)]),
    "convolution": (_convolution, [array(3, 2, 4, 4)]),
    "transposed-convolution": (
        lambda samples: samples.layer("conv_transpose2d", weight=array(2, 3, 2, 2), bias=array(3), stride=2, padding=0),
        [array(2, 2, 3, 3)],
    ),
    "layer-norm": (
        lambda samples: _stack(samples, dense(samples, 3, 6), samples.layer("layer_norm", features=6, epsilon=1e-5)),
        [array(4, 3)],
    ),
    "gelu": (lambda samples: _stack(samples, dense(samples, 3, 4), samples.layer("gelu")), [array(4, 3)]),
    "embedding": (
        lambda samples: samples.layer("embedding", weight=array(5, 3), padding_index=None),
        [np.array([[0, 1, 1], [4, 0, 2]])],
    ),
    "attention": (lambda samples: samples.layer("attention", features=4, heads=2, seed=0), [array(2, 3, 4)]),
    "lstm": (lambda samples: _recurrent(samples, "lstm", 4), [array(2, 3, 2)]),
    "gru": (lambda samples: _recurrent(samples, "gru", 3), [array(2, 3, 2)]),
}


@pytest.mark.clause("C1", "C2", "C3", "C0")
@pytest.mark.parametrize("name", MODELS)
def test_step_has_the_bits_of_the_plain_run(samples, name):
    build, inputs = MODELS[name]
    build_and_compare(samples, lambda: build(samples), *inputs)


@pytest.mark.clause("C1", "X1")
def test_values_through_a_checkpoint_agree_between_backends(samples, record):
    found = build_and_compare(samples, lambda: mlp(samples, 3, 5, 2), array(4, 3))
    found = {name: value for name, value in found.items() if not name.startswith("draw")}
    # A gradient is a sum over 4 samples of products through 2 layers of at most 5 terms.
    record("step", found, terms=4 * 5 * 2, reason="sums over 4 samples, through two layers of up to 5 terms")


@pytest.mark.clause("C1", "C9")
def test_every_declared_dtype_has_the_bits_of_the_plain_run(samples, dtype):
    x = array(4, 3)

    def one(checkpoint):
        weight = samples.leaf(array(3, 3), dtype)
        block = unigrad.wrap({"weight": weight})

        def run(t):
            return samples.operations.tanh(samples.operations.matmul(t, weight))

        with unigrad.GradientCollector(block) as collector:
            watched = collector.watch(samples.tensor(x, dtype), name="x")
            loss = samples.operations.sum((unigrad.checkpoint(run, blocks=[block]) if checkpoint else run)(watched))
            collector.backward(loss)
        native = collector.backend.arrays
        assert native.dtype(collector.gradients["weight"]) == dtype
        assert native.dtype(collector.input_gradients["x"]) == dtype
        return {
            "loss": to_numpy(loss),
            **gradients_of(collector),
            "x": to_numpy(collector.input_gradients["x"]),
        }

    same_bits(one(False), one(True))


@pytest.mark.clause("C0")
def test_native_call_inside_a_collector_is_the_plain_run(samples, backend):
    plain, native, rerun = (unigrad.wrap(mlp(samples, 3, 8, 2, rate=0.5)).train() for _ in range(3))
    x = array(4, 3)
    expected = step(samples, plain, plain, x)
    same_bits(expected, step(samples, rerun, unigrad.checkpoint(rerun), x))
    # The mode is an argument of the call, which a native call has not given.
    if not backend.block.training(native.native):
        expected = step(samples, plain.eval(), plain, x)
    same_bits(expected, step(samples, native, lambda t: native.native(t), x))


@pytest.mark.clause("C1")
def test_values_of_a_checkpoint_without_any_collector(samples):
    model = mlp(samples, 3, 5, 2)
    x = samples.tensor(array(4, 3))
    same_bits({"y": to_numpy(unigrad.wrap(model)(x))}, {"y": to_numpy(unigrad.checkpoint(unigrad.wrap(model))(x))})


def _shared(samples, run_of):
    """Run a region whose parameter and whose input are used several times inside and outside."""
    operations = samples.operations
    model = samples.model(
        lambda self, x: operations.tanh(operations.matmul(operations.tanh(operations.matmul(x, self.w)), self.w)) + x,
        parameters={"w": array(3, 3)},
    )
    block = unigrad.wrap(model)
    run = run_of(block)
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(array(4, 3)), name="x")
        y = run(x)
        loss = operations.sum(operations.tanh(y) * operations.sin(y) + x * x) + operations.sum(run(y))
        collector.backward(loss)
        return {
            "loss": to_numpy(loss),
            "w": to_numpy(collector.gradients["w"]),
            "x": to_numpy(collector.input_gradients["x"]),
        }


@pytest.mark.clause("C1")
def test_shared_tensors_agree_up_to_the_order_of_summation(samples, record):
    plain, rerun = _shared(samples, lambda block: block), _shared(samples, unigrad.checkpoint)
    assert plain["loss"].tobytes() == rerun["loss"].tobytes()
    for name in ("w", "x"):
        # Up to 4 contributions (two uses in each of two calls) of size up to the largest gradient, in another order.
        bound = 3 * np.finfo("float32").eps * 4 * np.abs(plain[name]).max()
        np.testing.assert_allclose(rerun[name], plain[name], rtol=0, atol=bound)
    record(
        "gradients", rerun, terms=4 * 3 * 4, reason="4 contributions, each a sum over 4 samples of chains of 3 terms"
    )


@pytest.mark.clause("C1", "A6")
def test_shared_tensors_have_the_same_bits_where_declared(samples, guarantee):
    declared = guarantee(Guarantee.BITEXACT_SHARING)
    plain, rerun = _shared(samples, lambda block: block), _shared(samples, unigrad.checkpoint)
    if declared == "kept":
        same_bits(plain, rerun)
    else:
        assert declared == "undetected"
        assert any(plain[name].tobytes() != rerun[name].tobytes() for name in plain)


@pytest.mark.clause("C1", "C4")
def test_function_runs_once_in_forward_and_once_in_each_backward(samples):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    block = unigrad.wrap(samples.model(forward, parameters={"w": array(3)}))
    run = unigrad.checkpoint(block)
    calls = []
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, run(samples.tensor(array(3))))
        calls.append(count.calls)
        collector.backward(loss, retain_graph=True)
        calls.append(count.calls)
        collector.backward(loss)
        calls.append(count.calls)
    assert calls == [1, 2, 3]


@pytest.mark.clause("C12", "G17")
@pytest.mark.needs(Capability.SECOND_ORDER, Capability.SECOND_ORDER_CHECKPOINT)
def test_second_order_through_a_checkpoint(samples):
    operations = samples.operations
    block = unigrad.wrap(samples.model(lambda self, x: operations.sin(x) * x))
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(np.array([0.5, 1.0, 2.0])), name="x")
        collector.backward(operations.sum(run(x)), create_graph=True)
        slope = collector.input_gradients["x"]
        collector.backward(operations.sum(slope))
    values = np.array([0.5, 1.0, 2.0])
    # d2/dx2 of x sin x is 2 cos x - x sin x; three roundings of numbers up to 2 in float64.
    np.testing.assert_allclose(
        to_numpy(collector.input_gradients["x"]), 2 * np.cos(values) - values * np.sin(values), rtol=0, atol=1e-14
    )


@pytest.mark.clause("C1", "G18")
def test_training_steps_with_checkpoint_follow_the_plain_run(samples):
    def train(checkpoint):
        block = unigrad.wrap(mlp(samples, 3, 8, 2, rate=0.5)).train()
        run = unigrad.checkpoint(block) if checkpoint else block
        optimizer = unigrad.Optimizer(block, samples.sgd(0.1, momentum=0.9))
        unigrad.seed(11)
        losses = {}
        for index in range(3):
            with unigrad.GradientCollector(block) as collector:
                loss = total(samples, run(samples.tensor(array(4, 3, seed=index))))
                collector.backward(loss)
                collector.apply(optimizer)
            losses[f"loss {index}"] = to_numpy(loss)
        return losses | block.state()

    same_bits(train(False), train(True))

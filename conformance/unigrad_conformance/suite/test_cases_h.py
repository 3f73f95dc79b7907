"""Cases of kind H: unused parameters are absent, never zero, and told once."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import unigrad
from unigrad.errors import NoGraphError, UnusedParameterWarning
from unigrad_conformance.suite.block_problems import collect, vector
from unigrad_conformance.suite.problems import array, dense, gradients_of, to_numpy


def two_dense(samples):
    def layer():
        return samples.layer("dense", weight=np.ones((1, 2), "float32"), bias=np.zeros(1, "float32"))

    return samples.model(lambda self, x: self.a(x), layers={"a": layer(), "b": layer()})


@pytest.mark.clause("G6", "R3")
@pytest.mark.case(64)
def test_64_an_unused_layer_has_no_gradient_and_is_named_once(samples, record):
    block = unigrad.wrap(two_dense(samples))
    ops = samples.operations
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            with unigrad.GradientCollector(block) as collector:
                collector.backward(ops.sum(block(samples.tensor(np.array([[1.0, 2.0]], "float32")))))
    found = gradients_of(collector)
    assert {name: values.tolist() for name, values in found.items()} == {"a.weight": [[1, 2]], "a.bias": [1]}
    (warning,) = told
    assert issubclass(warning.category, UnusedParameterWarning)
    assert "b.weight, b.bias" in str(warning.message)
    record("gradients", found, reason="products with one")


@pytest.mark.clause("G6", "R4")
@pytest.mark.case(64)
def test_64_an_unused_layer_is_not_optimized(samples):
    block = unigrad.wrap(two_dense(samples))
    optimizer = unigrad.Optimizer(block, samples.adamw(0.1, 0.1))
    ops = samples.operations
    collect(block, lambda: ops.sum(block(samples.tensor(np.array([[1.0, 2.0]], "float32"))))).apply(optimizer)
    assert optimizer.served == ("a.weight", "a.bias")
    assert to_numpy(block.parameters["b.weight"]).tolist() == [[1, 1]]


@pytest.mark.clause("G6", "G8", "R3")
@pytest.mark.case(65)
def test_65_a_loss_without_any_of_the_parameters_is_empty_and_told(samples):
    block = unigrad.wrap(two_dense(samples))
    ops = samples.operations
    with pytest.warns(UnusedParameterWarning, match=r"a\.weight"), unigrad.GradientCollector(block) as collector:
        collector.backward(ops.sum(samples.leaf(array(3))))
    assert dict(collector.gradients) == {}
    zeros = collector.gradients_or_zeros()
    assert list(zeros) == list(block.parameters)
    for name, parameter in block.parameters.items():
        values, like = to_numpy(zeros[name]), to_numpy(parameter)
        assert (values.dtype, values.shape) == (like.dtype, like.shape)
        assert not values.any()


@pytest.mark.clause("G8")
@pytest.mark.case(65)
def test_65_a_constant_loss_is_an_error(samples):
    block = unigrad.wrap(two_dense(samples))
    with unigrad.GradientCollector(block) as collector, pytest.raises(NoGraphError):
        collector.backward(samples.operations.sum(samples.tensor(array(3))))


def momentum_one(samples):
    """Return block and optimizer after a step that leaves ``p`` at 1 with a momentum buffer of 1."""
    block = unigrad.wrap(
        {"p": samples.leaf(np.array([1.125]), "float64"), "q": samples.leaf(np.array([5.0]), "float64")}
    )
    # Some frameworks hold settings in single precision, so these are multiples of 1/8 in place of the case's multiples of 1/10.
    optimizer = unigrad.Optimizer(block, samples.sgd(0.125, momentum=0.875, decay=0.125))
    # The first direction is gradient + decay * p = 0.859375 + 0.140625 = 1, so p becomes 1.125 - 0.125 * 1.
    slope = samples.tensor(np.array([0.859375]))
    collect(block, lambda: samples.operations.sum(block.parameters["p"] * slope)).apply(optimizer)
    assert to_numpy(block.parameters["p"]) == pytest.approx(1.0, abs=1e-15)
    return block, optimizer


@pytest.mark.clause("R4", "G6")
@pytest.mark.case(67)
def test_67_an_absent_gradient_moves_nothing(samples, record):
    block, optimizer = momentum_one(samples)
    before = to_numpy(block.parameters["p"])
    collect(block, lambda: samples.operations.sum(block.parameters["q"])).apply(optimizer)
    assert to_numpy(block.parameters["p"]).tobytes() == before.tobytes()
    record("p", block.parameters["p"], terms=4, reason="one step of four roundings")


@pytest.mark.clause("R4", "G6")
@pytest.mark.case(67)
def test_67_a_zero_gradient_moves_by_momentum_and_decay(samples):
    block, optimizer = momentum_one(samples)
    p, q = block.parameters["p"], block.parameters["q"]
    collect(block, lambda: samples.operations.sum(q + p * 0.0)).apply(optimizer)
    # 1 - 0.125 * (0.875 * 1 + 0.125 * 1)
    assert to_numpy(p) == pytest.approx(0.875, abs=1e-15)


@pytest.mark.clause("G6", "G9")
@pytest.mark.case(68)
def test_68_one_output_of_several_is_used(samples, record):
    ops = samples.operations
    x = samples.leaf(np.array([1.0, 1.0, 1.0]))
    collector = collect({"x": x}, lambda: ops.sum(ops.split(x, 3, 0)[0] * 2.0))
    assert to_numpy(collector.gradients["x"]).tolist() == [2, 0, 0]
    record("x", collector.gradients["x"], reason="a doubling")


@pytest.mark.clause("R3")
@pytest.mark.case(69)
@pytest.mark.parametrize("one_collector", [True, False], ids=["one-collector", "one-a-step"])
def test_69_a_head_that_is_never_used_is_told_once_in_five_steps(samples, one_collector):
    layers = {name: dense(samples, 2, 2) for name in ("encoder", "pooler", "head")}

    def forward(self, x, pool=False):
        hidden = self.encoder(x)
        return self.pooler(hidden) if pool else self.head(hidden)

    block = unigrad.wrap(samples.model(forward, layers=layers))
    ops = samples.operations
    x = samples.tensor(array(1, 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if one_collector:
            with unigrad.GradientCollector(block) as collector:
                for _ in range(5):
                    collector.backward(ops.sum(block(x)))
                    collector.zero()
        else:
            for _ in range(5):
                with unigrad.GradientCollector(block) as collector:
                    collector.backward(ops.sum(block(x)))
        assert [str(found.message).count("pooler") for found in told] == [2]
        with unigrad.GradientCollector(block) as collector:
            collector.backward(ops.sum(block(x, pool=True)))
        assert len(told) == 2
        assert "head.weight" in str(told[1].message)


@pytest.mark.clause("G6", "R2")
@pytest.mark.case(70)
@pytest.mark.parametrize(
    ("form", "present"),
    [
        pytest.param(lambda ops, a, b: a * a + b * 0.0, True, id="times-zero"),
        pytest.param(lambda ops, a, b: a * a + b - b, True, id="minus-itself"),
        pytest.param(lambda ops, a, b: a * a + ops.stop_gradient(b), False, id="stopped"),
    ],
)
def test_70_dependence_is_structural(samples, record, form, present):
    ops = samples.operations
    block = unigrad.wrap(vector(samples, lambda self: ops.sum(form(ops, self.a, self.b)), a=[2.0], b=[3.0]))
    collector = collect(block, lambda: block())
    found = {name: values.tolist() for name, values in gradients_of(collector).items()}
    assert found == ({"a": [4], "b": [0]} if present else {"a": [4]})
    assert collector.usage.disconnected == (() if present else ("b",))
    record("gradients", collector.gradients, reason="sums of two equal terms")


@pytest.mark.clause("B3", "G6")
@pytest.mark.case(71)
def test_71_a_frozen_layer_has_and_stores_no_gradient(samples, backend):
    block = unigrad.wrap(samples.layer("sequential", layers=[dense(samples, 2, 2), dense(samples, 2, 2)])).freeze("0")
    ops = samples.operations
    with unigrad.GradientCollector(block) as collector:
        loss = ops.sum(block(samples.tensor(array(3, 2))))
        # The graph ends above the frozen layer, so that nothing is propagated into it.
        leaves = [id(leaf) for leaf in backend.tape.trace([loss]).leaves]
        assert leaves == [id(block.parameters["1.weight"]), id(block.parameters["1.bias"])] or set(leaves) == {
            id(block.parameters["1.weight"]),
            id(block.parameters["1.bias"]),
        }
        collector.backward(loss)
        collector.write_back()
    assert set(collector.gradients) == {"1.weight", "1.bias"}
    assert backend.tape.native_gradient(block.parameters["0.weight"]) is None

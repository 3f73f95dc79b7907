"""Real faults of kinds B and K that meet a checkpoint: consumed activations, kept activations, changed values, rows."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.samples import NoSampleError
from unigrad_conformance.suite.problems import to_numpy
from unigrad_conformance.suite.regions import Counted


@pytest.mark.case(17)
@pytest.mark.clause("C5", "G3", "G1")
def test_recomputed_activations_serve_each_backward_once(samples, record):
    operations = samples.operations
    count = Counted()

    def forward(self, x):
        count()
        return operations.sin(x) * x

    block = unigrad.wrap(samples.model(forward))
    expected = np.array([1.381773, 0.077004])
    with unigrad.GradientCollector(block, accumulate="add", parameters=False) as collector:
        x = collector.watch(samples.tensor(np.array([1, 2], "float32")), name="x")
        loss = operations.sum(unigrad.checkpoint(block)(x))
        collector.backward(loss, retain_graph=True)
        np.testing.assert_allclose(to_numpy(collector.input_gradients["x"]), expected, rtol=1e-5)
        collector.backward(loss)
        np.testing.assert_allclose(to_numpy(collector.input_gradients["x"]), [2.763546, 0.154007], rtol=1e-5)
        with pytest.raises(unigrad.GraphReleasedError):
            collector.backward(loss)
    assert count.calls == 3
    record(
        "sum", collector.input_gradients["x"], terms=8, reason="sine, cosine, products; the second one cancels from 1"
    )


def _three_layers(samples, probes):
    def forward(self, x):
        hidden = self.dense(x)
        probes.append(samples.storage_alive(hidden))
        return samples.operations.tanh(hidden)

    weight = np.eye(4, dtype="float32")
    return [
        samples.model(forward, layers={"dense": samples.layer("dense", weight=weight, bias=None)}) for _ in range(3)
    ]


@pytest.mark.case(18)
@pytest.mark.clause("C4", "G15")
@pytest.mark.parametrize("backward", [True, False], ids=["after-backward", "never-run"])
def test_checkpoint_keeps_no_activation_alive(samples, backward):
    probes: list[Any] = []
    layers = _three_layers(samples, probes)
    joined = {f"layer{index}": unigrad.wrap(layer) for index, layer in enumerate(layers)}
    with unigrad.GradientCollector(joined, on_unused="ignore") as collector:
        x = samples.tensor(np.ones((2, 4), "float32"))
        for layer in layers:
            x = unigrad.checkpoint(layer)(x)
        loss = samples.operations.sum(x)
        assert [probe() for probe in probes] == [False] * 3
        if backward:
            collector.backward(loss)
            assert [probe() for probe in probes] == [False] * 6
        probes.append(samples.storage_alive(x))
        del loss, x
        gc.collect()
        assert not any(probe() for probe in probes)


@pytest.mark.case(20)
@pytest.mark.clause("C8", "G14")
@pytest.mark.parametrize("how", ["change", "change_hidden"], ids=["native", "hidden"])
def test_weight_doubled_between_forward_and_backward(samples, how):
    """The gradient at the forward's weight, or an error; ``[[44, 88]]`` is that of the new weight."""
    layer = samples.layer("dense", weight=np.array([[3, 4]], "float32"), bias=None)
    block = unigrad.wrap(samples.model(lambda self, x: self.dense(x) * self.dense(x), layers={"dense": layer}))
    weight = block.parameters["dense.weight"]
    doubled = 2 * to_numpy(weight)
    with unigrad.GradientCollector(block) as collector:
        y = unigrad.checkpoint(block)(samples.tensor(np.array([[1, 2]], "float32")))
        try:
            getattr(samples, how)(weight, doubled)
        except NoSampleError:
            return  # the framework has no such way, so nothing can go wrong
        try:
            collector.backward(samples.operations.sum(y))
        except (unigrad.StaleGraphError, unigrad.RecomputeMismatchError):
            return
    assert to_numpy(collector.gradients["dense.weight"]).ravel().tolist() == [22, 44]


@pytest.mark.case(20)
@pytest.mark.clause("C8", "B6")
def test_input_array_changed_between_forward_and_backward(samples):
    """``[[1, 2]]`` because the values were copied, or an error; ``[[11, 12]]`` is the changed array."""
    array = np.array([[1, 2]], "float32")
    try:
        x = samples.shared_tensor(array)
    except NoSampleError:
        x = samples.tensor(array)
    layer = samples.layer("dense", weight=np.array([[3, 4]], "float32"), bias=None)
    with unigrad.GradientCollector(layer) as collector:
        y = unigrad.checkpoint(layer)(x)
        array += 10
        try:
            collector.backward(samples.operations.sum(y))
        except (unigrad.StaleGraphError, unigrad.RecomputeMismatchError):
            return
    assert to_numpy(collector.gradients["weight"]).ravel().tolist() == [1, 2]


@pytest.mark.case(87)
@pytest.mark.clause("C1", "G10")
def test_looked_up_rows_inside_meet_a_dense_use_outside(samples, record):
    operations = samples.operations
    layer = samples.layer("embedding", weight=np.ones((4, 2), "float32"), padding_index=None)
    block = unigrad.wrap(layer)
    table = block.parameters["weight"]
    with unigrad.GradientCollector(block) as collector:
        rows = unigrad.checkpoint(layer)(samples.tensor(np.array([0, 0, 2])))
        collector.backward(operations.sum(rows) + operations.sum(table * table))
    gradient = to_numpy(collector.gradients["weight"])
    assert gradient.tolist() == [[4, 4], [2, 2], [3, 3], [2, 2]]
    record("gradient", gradient, reason="small integers are exact")

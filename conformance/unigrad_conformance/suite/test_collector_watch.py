"""Clause G9: gradients of watched tensors."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentTypeError, CollectorClosedError
from unigrad_conformance.suite.collecting import collects, f32, leaves
from unigrad_conformance.suite.problems import dense, to_numpy

pytestmark = pytest.mark.clause("G9")
EXACT = "small integers, exact in every dtype"


def collector_of(block, accumulate="write", **more):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **more)


def test_a_watched_input_has_a_gradient(samples, record):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), name="x")
        collector.backward(samples.operations.sum(own["w"] * x * x))
    collects(collector.input_gradients, x=[6, 16])
    collects(collector.gradients, w=[1, 4])
    record("inputs", collector.input_gradients, reason=EXACT)


def test_watch_returns_a_new_tensor_and_alters_nothing(samples, backend):
    own = leaves(samples, w=[3, 4])
    plain = samples.tensor(f32([1, 2]))
    with collector_of(own) as collector:
        x = collector.watch(plain, "x")
        assert x is not plain
        np.testing.assert_array_equal(to_numpy(x), to_numpy(plain))
        assert not backend.arrays.requires_gradient(plain)
        collector.backward(samples.operations.sum(own["w"] * x))
    assert not backend.arrays.requires_gradient(plain)
    assert backend.arrays.requires_gradient(own["w"])
    np.testing.assert_array_equal(to_numpy(plain), [1, 2])


def test_an_intermediate_value_stays_connected_to_its_graph(samples, record):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        hidden = collector.watch(own["w"] * own["w"], "hidden")
        collector.backward(samples.operations.sum(hidden * hidden))
    collects(collector.input_gradients, hidden=[18, 32])
    collects(collector.gradients, w=[4 * 27, 4 * 64])
    record("inputs", collector.input_gradients, reason=EXACT)


def test_a_watched_parameter_gets_both(samples):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        twin = collector.watch(own["w"], "twin")
        collector.backward(samples.operations.sum(twin * own["w"]))
    collects(collector.input_gradients, twin=[3, 4])
    collects(collector.gradients, w=[6, 8])


def test_two_stages_of_one_path_are_both_collected(samples):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        hidden = collector.watch(own["w"] * x, "hidden")
        collector.backward(samples.operations.sum(hidden * 5.0))
    collects(collector.input_gradients, x=[15, 20], hidden=[5, 5])


def test_watching_a_name_again_replaces_it(samples):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        first = collector.watch(samples.tensor(f32([1, 2])), "x")
        second = collector.watch(samples.tensor(f32([10, 20])), "x")
        collector.backward(samples.operations.sum(own["w"] * (first + second * second)))
    collects(collector.input_gradients, x=[60, 160])


def test_add_sums_per_watched_tensor(samples, record):
    own = leaves(samples, w=[3, 4])
    with collector_of(own, "add") as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        for _ in range(3):
            collector.backward(samples.operations.sum(own["w"] * x))
        collects(collector.input_gradients, x=[9, 12])
        x = collector.watch(samples.tensor(f32([5, 6])), "x")
        assert "x" not in collector.input_gradients
        collector.backward(samples.operations.sum(own["w"] * x))
    collects(collector.input_gradients, x=[3, 4])
    collects(collector.gradients, w=[3 + 5, 6 + 6])
    record("inputs", collector.input_gradients, reason=EXACT)


def test_write_holds_the_watched_tensors_of_the_last_call(samples):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        y = collector.watch(samples.tensor(f32([1, 2])), "y")
        collector.backward(samples.operations.sum(own["w"] * x))
        collects(collector.input_gradients, x=[3, 4])
        collector.backward(samples.operations.sum(own["w"] * y))
        collects(collector.input_gradients, y=[3, 4])


def test_a_watched_tensor_that_no_loss_reaches_is_absent(samples):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        collector.watch(samples.tensor(f32([1, 2])), "x")
        collector.backward(samples.operations.sum(own["w"] * 2.0))
    assert len(collector.input_gradients) == 0
    with pytest.raises(KeyError, match="x"):
        collector.input_gradients["x"]


def test_without_parameters_only_watched_tensors_are_collected(samples, record):
    model = dense(samples, 2, 1)
    with unigrad.GradientCollector(model, parameters=False) as collector:  # and no warning of unused ones
        x = collector.watch(samples.tensor(f32([[1, 2]])), "x")
        collector.backward(samples.operations.sum(model(x)))
    assert len(collector.gradients) == 0
    np.testing.assert_array_equal(to_numpy(collector.input_gradients["x"]), to_numpy(model_weight(model)))
    record("inputs", collector.input_gradients, reason="a copy of the weight")


def model_weight(model):
    return unigrad.wrap(model).parameters["weight"]


def test_without_parameters_none_is_differentiated(samples, backend, monkeypatch):
    asked = []
    plain = backend.tape.vjp

    def counted(graph, cotangents, targets, *, retain, create):
        asked.append(len(targets))
        return plain(graph, cotangents, targets, retain=retain, create=create)

    monkeypatch.setattr(backend.tape, "vjp", counted)
    model = dense(samples, 2, 1)
    with unigrad.GradientCollector(model, parameters=False) as collector:
        x = collector.watch(samples.tensor(f32([[1, 2]])), "x")
        collector.backward(samples.operations.sum(model(x)))
    assert asked == [1]


def test_a_watched_input_is_not_counted_as_outside(samples):
    own, foreign = leaves(samples, w=[3, 4]), leaves(samples, other=[1, 1])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        collector.backward(samples.operations.sum(own["w"] * x))
        assert collector.usage.outside == 0
        collector.backward(samples.operations.sum(own["w"] * foreign["other"]))
        assert collector.usage.outside == 1
        collector.zero()
        watched = collector.watch(foreign["other"], "other")
        collector.backward(samples.operations.sum(own["w"] * watched))
        assert collector.usage.outside == 0


def test_two_collectors_watch_one_tensor(samples):
    own = leaves(samples, w=[3, 4])
    plain = samples.tensor(f32([1, 2]))
    with collector_of(own) as outer, collector_of(own) as inner:
        x = inner.watch(outer.watch(plain, "x"), "x")
        loss = samples.operations.sum(own["w"] * x)
        outer.backward(loss, retain_graph=True)
        inner.backward(loss)
    collects(outer.input_gradients, x=[3, 4])
    collects(inner.input_gradients, x=[3, 4])


def test_watched_gradients_outlive_the_collector(samples):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(f32([1, 2])), "x")
        collector.backward(samples.operations.sum(own["w"] * x))
    del own, x
    collects(collector.input_gradients, x=[3, 4])


def test_the_gradient_of_an_input_has_its_dtype(samples, dtype):
    own = leaves(samples, dtype, w=[3, 4])
    with collector_of(own) as collector:
        x = collector.watch(samples.tensor(np.array([1.0, 2.0]), dtype), "x")
        collector.backward(samples.operations.sum(own["w"] * x))
    collects(collector.input_gradients, x=[3, 4])
    assert collector.backend.arrays.dtype(collector.input_gradients["x"]) == dtype


@pytest.mark.parametrize("dtype_name", ["int64", "int32", "bool"])
def test_a_tensor_without_gradients_is_a_type_error(samples, dtype_name):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector:
        with pytest.raises(ArgumentTypeError, match=dtype_name):
            collector.watch(samples.tensor(np.array([1, 0], dtype_name)), "x")
        assert len(collector.input_gradients) == 0


@pytest.mark.parametrize(
    "wrong", [1.5, [1.0, 2.0], None, "x", np.ones(2, "float32")], ids=["number", "list", "none", "text", "array"]
)
def test_what_is_no_tensor_cannot_be_watched(samples, wrong):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector, pytest.raises(ArgumentTypeError, match="watch"):
        collector.watch(wrong, "x")


@pytest.mark.parametrize("name", ["", None, 3], ids=["empty", "none", "number"])
def test_a_watched_tensor_needs_a_name(samples, name):
    own = leaves(samples, w=[3, 4])
    with collector_of(own) as collector, pytest.raises(ArgumentTypeError, match="name"):
        collector.watch(samples.tensor(f32([1, 2])), name)


def test_watch_belongs_inside(samples):
    own = leaves(samples, w=[3, 4])
    collector = collector_of(own)
    with pytest.raises(CollectorClosedError):
        collector.watch(samples.tensor(f32([1, 2])), "x")
    with collector:
        pass
    with pytest.raises(CollectorClosedError):
        collector.watch(samples.tensor(f32([1, 2])), "x")

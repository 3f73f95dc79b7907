"""Clause G12: the gradient has the parameter's dtype; half precision is added up in float32."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.collecting import collects, leaves
from unigrad_conformance.suite.problems import to_numpy

pytestmark = pytest.mark.clause("G12")
EXACT = "small integers, exact in every dtype"


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.parametrize("mode", ["write", "add"])
def test_the_gradient_has_the_dtype_of_the_parameter(samples, backend, record, dtype, mode):
    own = leaves(samples, dtype, a=[1, 2], b=[3, 4])
    with collector_of(own, mode) as collector:
        for _ in range(2):
            collector.backward(samples.operations.sum(own["a"] * own["b"]))
            assert {name: backend.arrays.dtype(value) for name, value in collector.gradients.items()} == {
                "a": dtype,
                "b": dtype,
            }
    times = 2 if mode == "add" else 1
    collects(collector.gradients, a=[3 * times, 4 * times], b=[times, 2 * times])
    record("gradients", collector.gradients, reason=EXACT)


def test_a_weighted_mean_has_the_dtype_of_the_parameter(samples, backend, record, dtype):
    own = leaves(samples, dtype, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0), weight=3)
        assert backend.arrays.dtype(collector.gradients["a"]) == dtype
        collector.backward(samples.operations.sum(own["a"] * 7.0), weight=1)
        assert backend.arrays.dtype(collector.gradients["a"]) == dtype
    collects(collector.gradients, a=[4, 4])
    record("gradients", collector.gradients, reason=EXACT)


def test_scale_and_clip_keep_the_dtype(samples, backend, dtype):
    own = leaves(samples, dtype, a=[3, 4])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["a"]))
        collector.scale(0.5)
        assert backend.arrays.dtype(collector.gradients["a"]) == dtype
        collects(collector.gradients, a=[3, 4])
        collector.clip_by_global_norm(2.5)
        assert backend.arrays.dtype(collector.gradients["a"]) == dtype
    # Norm 5, so a factor of one half, and halves are exact.
    collects(collector.gradients, a=[1.5, 2])


def test_zeros_have_the_dtype_of_the_parameter(samples, backend, dtype):
    own = leaves(samples, dtype, a=[1, 2], b=[3, 4])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    assert backend.arrays.dtype(collector.gradients_or_zeros()["b"]) == dtype


def test_a_dense_layer_of_every_dtype(samples, backend, dtype):
    model = samples.layer(
        "dense", weight=np.array([[1, 2], [3, 4]]).astype(np_dtype(dtype)), bias=np.zeros(2, np_dtype(dtype))
    )
    with collector_of(model) as collector:
        x = samples.tensor(np.array([[1.0, -1.0]]), dtype)
        collector.backward(samples.operations.sum(model(x)))
    collects(collector.gradients, weight=[[1, -1], [1, -1]], bias=[1, 1])
    assert backend.arrays.dtype(collector.gradients["weight"]) == dtype


def np_dtype(name):
    if name == "bfloat16":
        return importlib.import_module("ml_dtypes").bfloat16  # a backend that declares it needs it to reach NumPy
    return np.dtype(name)


@pytest.mark.dtypes("float32", "float64")
def test_parameters_of_two_dtypes_each_keep_theirs(samples, backend, dtype):
    own = {**leaves(samples, dtype, a=[1, 2]), **leaves(samples, "float32", b=[3, 4])}
    operations = samples.operations
    with collector_of(own) as collector:
        for _ in range(2):
            b = operations.cast(own["b"], dtype)
            collector.backward(operations.sum(own["a"] * b))
    collects(collector.gradients, a=[6, 8], b=[2, 4])
    found = {name: backend.arrays.dtype(value) for name, value in collector.gradients.items()}
    assert found == {"a": dtype, "b": "float32"}


@pytest.mark.dtypes("float16", "bfloat16")
def test_half_precision_is_added_in_float32(samples, backend, dtype):
    # From here on the dtype has only even integers, so that adding ones in it would stop at once.
    full = {"float16": 2048.0, "bfloat16": 256.0}[dtype]
    own = leaves(samples, dtype, a=[1, 1])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * full))
        for _ in range(4):
            collector.backward(samples.operations.sum(own["a"]))
        assert backend.arrays.dtype(collector.gradients["a"]) == dtype
    np.testing.assert_array_equal(to_numpy(collector.gradients["a"]).astype("float64"), [full + 4, full + 4])


@pytest.mark.clause("G11")
@pytest.mark.dtypes("float16", "bfloat16")
def test_a_weighted_mean_in_half_precision_does_not_overflow(samples, dtype):
    own = leaves(samples, dtype, a=[1, 1])
    with collector_of(own) as collector:
        for _ in range(2):
            # The sum 2 * 4000 * 64 is beyond the range of float16.
            collector.backward(samples.operations.sum(own["a"] * 64.0), weight=4000)
    np.testing.assert_array_equal(to_numpy(collector.gradients["a"]).astype("float64"), [64, 64])


@pytest.mark.clause("G9")
@pytest.mark.dtypes("float16", "bfloat16")
def test_a_name_watched_again_in_another_dtype(samples, backend, dtype):
    own = leaves(samples, "float32", a=[1, 1])
    with collector_of(own) as collector:
        for watched in (dtype, "float32"):
            x = collector.watch(samples.tensor(np.array([1.0, 2.0]), watched), "x")
            for _ in range(2):
                loss = samples.operations.sum(own["a"] * samples.operations.cast(x, "float32"))
                collector.backward(loss)
            assert backend.arrays.dtype(collector.input_gradients["x"]) == watched
            collects(collector.input_gradients, x=[2, 2])

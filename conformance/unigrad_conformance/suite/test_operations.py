"""Every operation agrees with its formula, value and gradient, and with every other backend (X1, X3)."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import unigrad
from unigrad.samples import Operations
from unigrad_conformance.suite.differences import STEP_ERROR, assert_near, central_differences
from unigrad_conformance.suite.operation_table import OPERATION_CASES
from unigrad_conformance.suite.problems import array, same_bits, to_numpy

pytestmark = pytest.mark.clause("X3", "X1")

# Tested below one by one: without a derivative, random, or about dtypes.
OTHERS = {"round", "sign", "argmax", "stop_gradient", "cast", "dropout", "normal", "uniform"}


def test_the_table_holds_every_operation():
    known = {case.operation for case in OPERATION_CASES} | OTHERS
    assert {name for name, value in vars(Operations).items() if inspect.isfunction(value) and name[0] != "_"} <= known


@pytest.mark.clause("X4", "G9")
@pytest.mark.dtypes("float32", "float64")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in OPERATION_CASES])
def test_value_and_gradient(samples, record, case, dtype):
    arrays = {name: value.astype(dtype) if value.dtype.kind == "f" else value for name, value in case.inputs.items()}
    exact = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in arrays.items()}
    expected = np.asarray(case.formula(*exact.values()))
    weights = array(*expected.shape, seed=50, dtype=dtype)
    # Gradients with the arrays' rounded values, so that only the operation's own rounding is measured.
    slopes = central_differences(case.formula, exact, weights.astype(np.float64))
    block = unigrad.wrap({"stand-in": samples.leaf(array(1))})
    with unigrad.GradientCollector(block, parameters=False) as collector:
        tensors = {
            name: collector.watch(samples.tensor(value), name=name)
            if value.dtype.kind == "f"
            else samples.tensor(value)
            for name, value in arrays.items()
        }
        outputs = case.call(samples.operations, **tensors)
        collector.backward(samples.operations.sum(outputs * samples.tensor(weights)))
    found = to_numpy(outputs)
    assert found.dtype == np.dtype(dtype)
    assert_near(found, expected, case.terms, scale=max(float(np.abs(expected).max()), 1.0), what="value")
    assert sorted(collector.input_gradients) == sorted(slopes)
    size = max(float(np.abs(weights).max()), 1.0)
    for name, slope in slopes.items():
        gradient = to_numpy(collector.input_gradients[name])
        assert gradient.dtype == np.dtype(dtype)
        scale = max(float(np.abs(slope).max()), size)
        assert_near(gradient, slope, case.terms, scale=scale, floor=STEP_ERROR, what=f"gradient of {name}")
        record(f"gradient of {name}", gradient, terms=case.terms, scale=scale, reason=case.reason)
    record("value", found, terms=case.terms, scale=max(float(np.abs(expected).max()), 1.0), reason=case.reason)


def gradient_names(samples, function, x):
    """Return value and gradients of ``sum(function(x) + x)``, split from what the ``x`` alone gives."""
    ops = samples.operations
    with unigrad.GradientCollector(unigrad.wrap({"w": samples.leaf(array(1))}), parameters=False) as collector:
        watched = collector.watch(samples.tensor(x), name="x")
        collector.backward(ops.sum(function(watched)) + ops.sum(watched))
    return to_numpy(collector.input_gradients["x"])


@pytest.mark.clause("G6", "X2")
@pytest.mark.parametrize("name", ["round", "sign"])
def test_steps_have_derivative_zero(samples, record, name):
    x = np.array([-2.7, -0.3, 0.4, 1.2, 2.9], "float32")
    step = getattr(samples.operations, name)
    same_bits({"y": to_numpy(step(samples.tensor(x)))}, {"y": getattr(np, name)(x)})
    same_bits({"g": gradient_names(samples, step, x)}, {"g": np.ones(5, "float32")})
    with unigrad.GradientCollector(unigrad.wrap({"w": samples.leaf(x)}), on_unused="ignore") as collector:
        leaf = collector.block.parameters["w"]
        collector.backward(samples.operations.sum(step(leaf)) + samples.operations.sum(samples.leaf(x)))
    # Whether a zero derivative is a zero gradient or none is a choice.
    record("gradient", collector.gradients, terms=0, reason="zero where there is one", choice=True)
    for value in collector.gradients.values():
        same_bits({"g": to_numpy(value)}, {"g": np.zeros(5, "float32")})


def test_round_takes_the_even_number_at_a_half(samples, record):
    found = to_numpy(samples.operations.round(samples.tensor(np.array([-1.5, -0.5, 0.5, 1.5, 2.5], "float32"))))
    record("rounded", np.abs(found), terms=0, reason="whole numbers", choice=True)
    np.testing.assert_array_equal(np.abs(found - [-1.5, -0.5, 0.5, 1.5, 2.5]), np.full(5, 0.5))


def test_argmax_gives_a_number_without_a_graph(samples, backend, record):
    found = samples.operations.argmax(samples.leaf(np.array([0.5, 3.0, 1.0], "float32")))
    assert int(to_numpy(found)) == 1
    assert not backend.arrays.requires_gradient(found)
    record("index", int(to_numpy(found)))


def test_stop_gradient_is_a_constant(samples):
    x = array(4)
    found = gradient_names(samples, lambda t: samples.operations.stop_gradient(t) * t, x)
    # d/dx (c x + x) = c + 1, one rounding.
    assert_near(found, x.astype(float) + 1, 1, scale=4.0)
    same_bits({"y": to_numpy(samples.operations.stop_gradient(samples.tensor(x)))}, {"y": x})


@pytest.mark.clause("G12")
def test_a_cast_has_the_gradient_of_the_dtype_before_it(samples, backend, dtype):
    ops = samples.operations
    default = backend.spec.dtypes[0]
    leaf = samples.leaf(np.array([1.0, 2.0, -3.0]), default)
    with unigrad.GradientCollector({"leaf": leaf}) as collector:
        y = ops.cast(leaf * 2.0, dtype)
        assert backend.arrays.dtype(y) == dtype
        collector.backward(ops.sum(y * y))
    gradient = collector.gradients["leaf"]
    assert backend.arrays.dtype(gradient) == default
    # d/dx (2x)^2 = 8x: whole numbers, exact in every dtype.
    np.testing.assert_array_equal(to_numpy(gradient).astype(float), [8.0, 16.0, -24.0])


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_dropout_keeps_or_drops_and_scales(samples, rate):
    x = np.full((40, 25), 3.0, "float32")
    with unigrad.GradientCollector(unigrad.wrap({"w": samples.leaf(x)})) as collector:
        y = samples.operations.dropout(collector.block.parameters["w"], rate)
        collector.backward(samples.operations.sum(y))
    found, gradient = to_numpy(y), to_numpy(collector.gradients["w"])
    kept = found != 0
    # Multiplied by 1 / (1 - rate): two roundings.
    np.testing.assert_allclose(found[kept], 3 / (1 - rate), rtol=4e-7)
    np.testing.assert_allclose(gradient[kept], 1 / (1 - rate), rtol=4e-7)
    assert not gradient[~kept].any()
    # 1,000 draws: five standard deviations are 0.08 for a half.
    assert abs(kept.mean() - (1 - rate)) < 0.08


@pytest.mark.parametrize(("name", "mean", "deviation"), [("normal", 0.0, 1.0), ("uniform", 0.5, 12**-0.5)])
def test_random_tensors_have_their_distribution_and_seed(samples, name, mean, deviation):
    draw = getattr(samples.operations, name)
    unigrad.seed(3)
    found = to_numpy(draw((50, 40)))
    assert found.shape == (50, 40)
    assert found.dtype.kind == "f"
    # 2,000 draws: six standard deviations of the mean.
    assert abs(found.mean() - mean) < 6 * deviation / 2000**0.5
    assert abs(found.std() - deviation) < 0.1 * deviation
    if name == "uniform":
        assert found.min() >= 0
        assert found.max() < 1
    again = to_numpy(draw((50, 40)))
    assert again.tobytes() != found.tobytes()
    unigrad.seed(3)
    same_bits({"y": to_numpy(draw((50, 40)))}, {"y": found})

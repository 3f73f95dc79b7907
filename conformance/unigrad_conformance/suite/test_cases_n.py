"""Real faults of kind N: ties and kinks, NaN, and what is rounding and what is not."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.compare import compare
from unigrad_conformance.observations import observe
from unigrad_conformance.suite.collecting import collects, f32, leaves
from unigrad_conformance.suite.problems import array, to_numpy

EXACT = "small integers, exact in every dtype"
KINK = "no derivative exists here; both sides are limits"


def gradient_of(samples, values, function):
    """Return the gradient of the sum of a function at some values."""
    own = leaves(samples, x=values)
    with unigrad.GradientCollector(own, "write") as collector:
        collector.backward(samples.operations.sum(function(own["x"])))
    return to_numpy(collector.gradients["x"])


@pytest.mark.clause("X2")
@pytest.mark.case(106)
@pytest.mark.parametrize("name", ["relu", "maximum", "clamp", "absolute"])
def test_the_larger_of_x_and_zero_at_zero(samples, record, name):
    operations = samples.operations
    function = {
        "relu": operations.relu,
        "maximum": lambda x: operations.maximum(x, samples.tensor(f32([0, 0, 0]))),
        "clamp": lambda x: operations.minimum_value(x, 0.0),
        "absolute": operations.absolute,
    }[name]
    found = gradient_of(samples, [-1, 0, 1], function)
    below = -1 if name == "absolute" else 0
    np.testing.assert_array_equal(found[[0, 2]], [below, 1])
    assert below <= found[1] <= 1, "neither the slope of one side nor one between them"
    record("beside", found[[0, 2]], reason=EXACT)
    record("at", found[1], choice=True, reason=KINK)


@pytest.mark.clause("X2")
@pytest.mark.case(107)
def test_hardswish_at_its_knees(samples, record):
    found = gradient_of(samples, [3, -3, 4, -4], samples.operations.hardswish)
    np.testing.assert_array_equal(found[2:], [1, 0])
    # The slopes of the two sides, and what lies between them.
    assert 1.0 <= found[0] <= 1.5
    assert -0.5 <= found[1] <= 0.0
    record("beside", found[2:], reason=EXACT)
    record("at", found[:2], choice=True, reason=KINK)


@pytest.mark.clause("X2")
@pytest.mark.case(107)
def test_relu6_at_six(samples, record):
    found = gradient_of(samples, [6, 5, 7], samples.operations.relu6)
    np.testing.assert_array_equal(found[1:], [1, 0])
    assert 0.0 <= found[0] <= 1.0
    record("beside", found[1:], reason=EXACT)
    record("at", found[0], choice=True, reason=KINK)


def shared_among_ties(smaller, ties):
    """Assert that one cotangent went to the equal largest elements, to the first or in shares, and to no smaller one."""
    assert smaller == 0
    assert (ties >= 0).all()
    assert abs(ties.sum() - 1) <= 3 * 2.0**-23  # a rounding of each share


@pytest.mark.clause("X2")
@pytest.mark.case(108)
def test_a_reduce_max_with_ties(samples, record):
    found = gradient_of(samples, [1, 2, 2, 2], samples.operations.max)
    shared_among_ties(found[0], found[1:])
    record("at", found, choice=True, terms=1, reason=KINK)


@pytest.mark.clause("X2")
@pytest.mark.case(108)
def test_a_max_pool_with_ties(samples, record):
    pool = samples.layer("max_pool2d", size=2)
    found = gradient_of(samples, [[[[1, 2], [2, 2]]]], pool)
    shared_among_ties(found[0, 0, 0, 0], found.ravel()[1:])
    record("at", found, choice=True, reason=KINK)


@pytest.mark.clause("X2")
@pytest.mark.case(109)
def test_a_norm_at_zero(samples, record):
    found = gradient_of(samples, [0, 0], samples.operations.norm)
    assert (found == 0).all() or np.isnan(found).all()
    record("at", found, choice=True, reason=KINK)


@pytest.mark.clause("X2")
@pytest.mark.case(109)
def test_the_root_of_a_sum_of_squares_at_zero(samples, record):
    operations = samples.operations
    found = gradient_of(samples, [0, 0], lambda x: operations.sqrt(operations.sum(x * x)))
    assert np.isnan(found).all()
    record("at", found, choice=True, reason=KINK)


@pytest.mark.clause("X1", "X2")
@pytest.mark.case(109)
def test_nan_against_a_number_has_its_own_label(samples):
    operations = samples.operations
    root = gradient_of(samples, [0, 0], lambda x: operations.sqrt(operations.sum(x * x)))
    left = observe("norm", root, terms=1, reason="one root")
    right = observe("norm", np.zeros_like(root), terms=1, reason="one root")
    assert compare(left, right).label == "not a number"
    assert compare(left, left).label == ""


@pytest.mark.clause("X1")
@pytest.mark.case(110)
def test_one_rounding_step_of_a_huge_number_is_no_difference(samples):
    value = np.float32(79025455104.0)
    neighbour = np.nextafter(value, np.float32(np.inf))
    assert neighbour - value == 8192
    found = [to_numpy(samples.tensor(f32([number]))) for number in (value, neighbour)]
    left, right = (observe("huge", item, terms=1, reason="one rounding") for item in found)
    comparison = compare(left, right)
    assert comparison.label == ""
    assert comparison.size == 8192
    assert comparison.relative == pytest.approx(1.04e-7, rel=1e-2)  # the case gives three digits


@pytest.mark.clause("X1")
@pytest.mark.case(111)
def test_harmless_rounding_passes_and_more_than_rounding_does_not(samples):
    values = to_numpy(samples.operations.tanh(samples.tensor(array(4, 768))))

    def observed(shift):
        return observe("tanh", (values + f32(shift)).astype("float32"), terms=2, reason="a value and its product")

    assert compare(observed(0), observed(5e-7)).label == ""
    comparison = compare(observed(0), observed(4.7e-5))
    assert comparison.label == "value"
    assert comparison.ratio > 1
    assert comparison.size == pytest.approx(4.7e-5, rel=1e-2)  # rounded to the spacing of float32 near one


@pytest.mark.clause("X1")
@pytest.mark.case(112)
@pytest.mark.dtypes("float64")
def test_a_reciprocal_near_zero_shows_its_relative_size(samples, dtype):
    found = {}
    for shift in (0.0, 1e-9):
        own = {"x": samples.leaf(np.array([1e-4 + shift]), dtype)}
        with unigrad.GradientCollector(own, "write") as collector:
            loss = samples.tensor(np.array([1.0]), dtype) / own["x"]
            collector.backward(loss)
        found[shift] = (to_numpy(loss), to_numpy(collector.gradients["x"]))
    forward, gradient = (
        compare(*(observe("reciprocal", found[shift][part], terms=1, reason="one division") for shift in (0.0, 1e-9)))
        for part in (0, 1)
    )
    # First order in the shift, which is 1e-5 of the value.
    assert forward.label == gradient.label == "value"
    assert forward.size == pytest.approx(0.1, rel=1e-4)
    assert forward.relative == pytest.approx(1e-5, rel=1e-4)
    assert gradient.size == pytest.approx(2000, rel=1e-4)
    assert gradient.relative == pytest.approx(2e-5, rel=1e-4)


def used_twice(samples, own):
    w = samples.tensor(f32([1, 1, 2])) * own["s"]
    return samples.operations.sum(w * samples.operations.sum(w))


@pytest.mark.clause("G10")
@pytest.mark.case(114)
@pytest.mark.parametrize("retain", [False, True], ids=["released", "retained"])
def test_a_value_used_twice_in_one_product(samples, record, retain):
    own = leaves(samples, s=[1, 2, 3])
    with unigrad.GradientCollector(own, "write") as collector:
        collector.backward(used_twice(samples, own), retain_graph=retain)
    collects(collector.gradients, s=[18, 18, 36])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G10", "G17")
@pytest.mark.case(114)
@pytest.mark.needs(Capability.SECOND_ORDER)
def test_a_value_used_twice_in_one_product_with_the_gradient_graph(samples, record):
    own = leaves(samples, s=[1, 2, 3])
    with unigrad.GradientCollector(own, "write") as collector:
        collector.backward(used_twice(samples, own), create_graph=True)
    collects(collector.gradients, s=[18, 18, 36])
    record("gradients", collector.gradients, reason=EXACT)

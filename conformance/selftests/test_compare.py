"""Agreement of two backends: bounds, and the differences that are no matter of size (clauses X1, X2)."""

import math

import numpy as np
import pytest
from unigrad_conformance import compare
from unigrad_conformance.compare import agreements
from unigrad_conformance.observations import EPSILON, observe
from unigrad_conformance.report import agreement_table, exit_code, matrix
from unigrad_conformance.results import Result, Session


def seen(value, terms=1, **options):
    return observe("x", value, terms=terms, **{"reason": "as stated", **options})


def compared(left, right, **options):
    return compare.compare(seen(left, **options), seen(right, **options))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_x1_epsilon_is_that_of_the_dtype(dtype):
    assert EPSILON[dtype] == np.finfo(dtype).eps


def test_x1_one_rounding_step_of_a_huge_value_agrees():
    """Case 110: the float32 neighbour of 79025455104 is 8192 away."""
    left = np.float32(79025455104.0)
    right = np.nextafter(left, np.float32(np.inf), dtype=np.float32)
    assert right - left == 8192
    found = compared(left, right)
    assert found.label == ""
    assert found.size == 8192
    assert found.relative == pytest.approx(1.04e-7, rel=1e-2)


def test_x1_rounding_of_a_long_sum_agrees_and_a_fault_does_not():
    """Case 111: tanh values that differ by 5e-7 are rounding, by 4.7e-5 they are not."""
    values = np.tanh(np.linspace(-3, 3, 4 * 768, dtype=np.float32)).reshape(4, 768)
    options = {"terms": 2, "reason": "the argument and the function are rounded"}
    assert compared(values, values + np.float32(5e-7), **options).label == ""
    far = compared(values, values + np.float32(4.7e-5), **options)
    assert far.label == "value"
    assert far.ratio > 10


def test_x1_ill_conditioned_values_are_told_with_their_relative_size():
    """Case 112: 1/x at 1e-4 and 1e-4 + 1e-9: the gradients differ by 2000 of 1e8."""
    found = compared(-1 / np.float64(1e-4) ** 2, -1 / np.float64(1e-4 + 1e-9) ** 2)
    assert found.label == "value"
    assert found.size == pytest.approx(2000, rel=1e-3)
    assert found.relative == pytest.approx(2e-5, rel=1e-3)


def test_x1_a_number_against_nan_has_its_own_label():
    """Case 109: norm at zero is [0, 0] or NaN; NaN equals NaN only where both have it."""
    nan = np.array([np.nan, 1.0])
    assert compared(nan, nan).label == ""
    found = compared(np.array([1.0, 0.0]), np.array([1.0, np.nan]))
    assert (found.label, found.where) == ("not a number", "[1]")
    assert compared(nan, np.array([np.nan, 2.0])).label == "value"


def test_x1_infinities():
    infinite = np.array([np.inf, 1.0])
    assert compared(infinite, infinite).label == ""
    assert compared(infinite, -infinite).label == "infinity"
    assert compared(infinite, np.array([1e300, 1.0])).label == "infinity"


def test_x1_the_larger_bound_counts_and_the_first_difference_is_named():
    left, right = np.zeros((2, 2)), np.array([[0.0, 1e-12], [1.0, 0.0]])
    found = compared(left, right)
    assert found.bound == 4 * 2.0**-52
    assert (found.label, found.where, found.size) == ("value", "[0, 1]", 1.0)
    assert compare.compare(seen(0.0, scale=1e16), seen(1.0, scale=1e16)).label == ""


def test_x1_no_terms_ask_for_equal_values():
    assert compared(1.0, 1.0, terms=0).label == ""
    found = compared(1.0, np.nextafter(1.0, 2.0), terms=0)
    assert (found.label, found.ratio) == ("value", math.inf)


@pytest.mark.parametrize(
    ("left", "right", "label"),
    [
        pytest.param(seen(np.ones(2)), seen(np.ones((2, 1))), "shape", id="shape"),
        pytest.param(seen(np.ones(2)), seen(np.ones(2, np.float32)), "dtype", id="dtype"),
        pytest.param(seen(np.ones(2)), seen(np.ones(2), dtype="float32"), "dtype", id="computed-in"),
        pytest.param(seen(np.ones(2)), seen(np.ones(2), reason="another"), "reason", id="reason"),
        pytest.param(seen(np.ones(2)), seen("text"), "kind", id="kind"),
        pytest.param(seen(True), seen(1), "exact value", id="flag-and-number"),
        pytest.param(seen({"a"}), seen({"a", "b"}), "exact value", id="sets"),
        pytest.param(seen({"a"}), seen(["a"]), "exact value", id="set-and-list"),
        pytest.param(seen({"b", "a"}), seen({"a", "b"}), "", id="equal-sets"),
        pytest.param(seen("text"), seen("text"), "", id="equal-texts"),
        pytest.param(seen(np.array([1, 2])), seen(np.array([1, 3])), "value", id="integers"),
        pytest.param(seen(np.ones((0, 3))), seen(np.ones((0, 3))), "", id="empty"),
    ],
)
def test_x1_differences_that_are_no_matter_of_size(left, right, label):
    assert compare.compare(left, right).label == label


@pytest.mark.parametrize("value", [1j, np.array(["a"]), object(), {"a": 1}])
def test_what_cannot_be_compared_cannot_be_recorded(value):
    with pytest.raises(TypeError):
        seen(value)


def session(name, **observed):
    observations = tuple(
        observe(key.removesuffix("_choice"), value, terms=1, reason="r", choice=key.endswith("_choice"))
        for key, value in observed.items()
    )
    result = Result("test_a.py::test_a", "passed", ("G1",), observations=observations)
    return Session(name, results=(result,))


def test_x2_choices_are_flagged_and_fail_nothing():
    """Case 108: the gradient of max at a tie is shared or goes to the first."""
    sessions = [
        session("numpy", tie_choice=np.array([0, 1 / 2, 1 / 2])),
        session("other", tie_choice=np.array([0, 1.0, 0])),
    ]
    (agreement,) = agreements(sessions)
    assert [difference.choice for difference in agreement.differences] == [True]
    assert agreement.faults == []
    assert agreement.worst == 0
    assert exit_code(sessions) == 0


def test_x1_merged_rows_of_a_sparse_gradient_agree():
    """Case 88: rows [0, 1] and [0, 2] averaged over two, merged by adding or one after the other."""
    merged = np.zeros(4)
    np.add.at(merged, [0, 1, 0, 2], 0.5)
    sessions = [session("numpy", gradient=np.array([1, 0.5, 0.5, 0])), session("other", gradient=merged)]
    assert agreements(sessions)[0].differences == ()


def test_x1_a_disagreement_fails_the_check_and_its_clause():
    sessions = [session("numpy", x=1.0, y=2.0), session("other", x=1.5, z=2.0)]
    (agreement,) = agreements(sessions)
    assert [(one.name, one.comparison.label) for one in agreement.differences] == [
        ("x", "value"),
        ("y", "missing"),
        ("z", "missing"),
    ]
    assert agreement.compared == 3
    assert agreement.worst_at == "test_a.py::test_a x"
    assert exit_code(sessions) == 1
    assert dict((row[0], row[2:]) for row in matrix(sessions).rows)["X1"] == ("not yet", "failed")
    assert agreement_table([agreement]).rows[0][:4] == ("other", "3", "3", "0")


def test_x1_only_tests_that_passed_on_both_are_compared():
    failed = Session("other", results=(Result("test_a.py::test_a", "failed"),))
    assert agreements([session("numpy", x=1.0), failed])[0].compared == 0
    assert agreements([session("one", x=1.0), session("other", x=2.0)]) == []

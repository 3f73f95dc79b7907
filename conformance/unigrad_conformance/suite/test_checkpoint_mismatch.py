"""Checkpoint: a recompute that differs from its forward is an error, never another number."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits
from unigrad_conformance.suite.regions import Counted, backward_through, random_bits

VERIFY = [True, "full", False]


def _changing(samples, *versions):
    """Return a block whose forward is another one of ``versions`` at each call."""
    count = Counted()

    def forward(self, x):
        return versions[min(count(), len(versions)) - 1](self, x)

    return unigrad.wrap(samples.model(forward, parameters={"w": array(2, 3)}))


def _constant(samples, values):
    """Return a forward whose last operation multiplies by a constant tensor."""
    constant = values.astype("float32")
    return lambda self, x: samples.operations.tanh(x * self.w) * samples.tensor(constant)


def _only(samples, values):
    """Return a forward that gives exactly these values, whatever goes in."""
    constant = values.astype("float32")
    return lambda self, x: samples.operations.tanh(x * self.w) * 0.0 + samples.tensor(constant)


ONES = np.ones((2, 3))
CHANGES = {
    "large": (ONES, 2 * ONES),
    "last-bit-of-one-element": (
        ONES,
        np.nextafter(np.float32(1), np.float32(2)) * (np.arange(6) == 4).reshape(2, 3)
        + ONES * (np.arange(6) != 4).reshape(2, 3),
    ),
    "all-signs": (ONES, -ONES),
    "two-signs": (ONES, np.array([[1.0, -1, 1], [-1, 1, 1]])),
    "sign-of-zero": (0 * ONES, -0.0 * ONES),
    "nan": (ONES, np.where(np.arange(6).reshape(2, 3) == 5, np.nan, 1)),
    "infinity": (ONES, np.where(np.arange(6).reshape(2, 3) == 0, np.inf, 1)),
}


@pytest.mark.clause("C8")
@pytest.mark.parametrize("verify", [True, "full"], ids=["fingerprint", "full"])
@pytest.mark.parametrize("change", CHANGES)
def test_other_values_are_noticed(samples, change, verify):
    """Also where only the last operation differs, which no gradient needs to recompute."""
    block = _changing(samples, *(_constant(samples, values) for values in CHANGES[change]))
    with pytest.raises(unigrad.RecomputeMismatchError):
        backward_through(samples, block, verify)


@pytest.mark.clause("C8")
@pytest.mark.parametrize("verify", [True, "full"], ids=["fingerprint", "full"])
def test_two_swapped_elements_are_noticed(samples, verify):
    """The same values in other places, which no sum over all of them can show."""
    forward, recompute = np.array([[1.0, 2, 3], [4, 5, 6]]), np.array([[1.0, 2, 3], [4, 6, 5]])
    block = _changing(samples, _only(samples, forward), _only(samples, recompute))
    with pytest.raises(unigrad.RecomputeMismatchError):
        backward_through(samples, block, verify)


@pytest.mark.clause("C8")
def test_full_verification_names_the_first_differing_element(samples):
    values = np.ones((2, 3))
    values[0, 2] = values[1, 1] = 3
    block = _changing(samples, _constant(samples, ONES), _constant(samples, values))
    with pytest.raises(unigrad.RecomputeMismatchError, match=r"\(0, 2\)"):
        backward_through(samples, block, "full")


@pytest.mark.clause("C8")
def test_switching_verification_off_switches_the_value_check_off(samples):
    """Documented as unsafe: the gradient is that of the recompute, which does the same with another number."""
    block = _changing(samples, lambda self, x: x * self.w + 0.0, lambda self, x: x * self.w + 1.0)
    gradients = backward_through(samples, block, verify=False)
    assert gradients["w"].tobytes() == array(2, 3, seed=1).tobytes()


@pytest.mark.clause("C8")
def test_equal_nan_is_no_difference(samples):
    block = _changing(samples, _constant(samples, np.full((2, 3), np.nan)))
    for verify in VERIFY:
        assert np.isnan(backward_through(samples, block, verify)["w"]).all()


OTHER_STRUCTURE = {
    "shape": lambda samples: (
        lambda self, x: samples.operations.tanh(x * self.w),
        lambda self, x: samples.operations.reshape(samples.operations.tanh(x * self.w), (3, 2)),
    ),
    "dtype": lambda samples: (
        lambda self, x: (x * self.w, samples.operations.cast(x, "float64")),
        lambda self, x: (x * self.w, x),
    ),
    "more-outputs": lambda samples: (
        lambda self, x: (x * self.w, x),
        lambda self, x: (x * self.w, x, x),
    ),
    "fewer-outputs": lambda samples: (lambda self, x: [x * self.w, x], lambda self, x: [x * self.w]),
    "other-container": lambda samples: (lambda self, x: (x * self.w, x), lambda self, x: [x * self.w, x]),
    "none-for-tensor": lambda samples: (lambda self, x: (x * self.w, x), lambda self, x: (x * self.w, None)),
    "other-flag": lambda samples: (lambda self, x: (x * self.w, True), lambda self, x: (x * self.w, False)),
}


@pytest.mark.clause("C8")
@pytest.mark.parametrize("verify", VERIFY, ids=["fingerprint", "full", "off"])
@pytest.mark.parametrize("what", OTHER_STRUCTURE)
def test_other_structure_is_noticed_whatever_the_verification(samples, what, verify):
    block = _changing(samples, *OTHER_STRUCTURE[what](samples))
    with pytest.raises(unigrad.RecomputeMismatchError):
        backward_through(samples, block, verify)


@pytest.mark.clause("C8")
def test_other_path_to_the_same_values_is_an_error_or_the_right_gradient(samples):
    """The recompute takes other operations that give the same bits: x * 2 against x + x."""
    block = _changing(samples, lambda self, x: (x * self.w) * 2.0, lambda self, x: (x * self.w) + (x * self.w))
    try:
        gradients = backward_through(samples, block)
    except unigrad.RecomputeMismatchError:
        return
    same_bits({"w": gradients["w"]}, {"w": 2 * array(2, 3, seed=1)})


@pytest.mark.clause("C8")
def test_message_says_what_to_look_for(samples):
    block = _changing(samples, _constant(samples, ONES), _constant(samples, 2 * ONES))
    with pytest.raises(unigrad.RecomputeMismatchError, match="must do the same on each call"):
        backward_through(samples, block)


@pytest.mark.clause("C8", "G15", "C2")
def test_mismatch_changes_nothing_else(samples, backend):
    block = _changing(samples, _constant(samples, ONES), _constant(samples, 2 * ONES)).train()
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        collector.backward(samples.operations.sum(block.parameters["w"] * 3.0))
        loss = samples.operations.sum(unigrad.checkpoint(block)(samples.tensor(array(2, 3, seed=1))))
        block.eval()
        before, state = gradients_of(collector), random_bits(backend)
        with pytest.raises(unigrad.RecomputeMismatchError):
            collector.backward(loss)
        same_bits(before, gradients_of(collector))
        assert not block.training
        assert random_bits(backend) == state
        assert backend.tape.is_recording()


@pytest.mark.clause("C8")
@pytest.mark.parametrize("verify", ["yes", None, 1, 0, "Full"])
def test_wrong_verify_is_an_error_at_once(samples, verify):
    with pytest.raises(unigrad.ArgumentError, match="verify"):
        unigrad.checkpoint(dense(samples, 2, 2), verify=verify)

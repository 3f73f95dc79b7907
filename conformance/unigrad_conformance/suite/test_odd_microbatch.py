"""Clauses M2, M3, M5: outputs that only seem to have the batch axis, constants that are no numbers, sizes of NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError
from unigrad_conformance.suite.collecting import f32, leaves
from unigrad_conformance.suite.problems import array, to_numpy


def spare(samples):
    """Return a block that a function does not use: with it, nothing has to be looked for among what is captured."""
    return unigrad.wrap(leaves(samples, w=[1]))


@pytest.mark.clause("M3")
def test_verify_finds_an_output_whose_batch_is_on_another_axis(samples):
    operations = samples.operations

    def with_state(x):  # as a recurrent layer returns its state: (layers, batch), here two layers
        last = operations.index(x, (slice(None), 0))
        return x * 2.0, operations.concat([operations.reshape(last, (1, -1)), operations.reshape(last, (1, -1))], 0)

    run = unigrad.microbatch(with_state, size=2, blocks=spare(samples), verify=True)
    with pytest.raises(ArgumentError, match=r"output\[1\] has shape \(2, 4\) for a part of 4 samples"):
        run(samples.tensor(array(6, 3)))


@pytest.mark.clause("M2")
def test_verify_leaves_combined_outputs_out(samples):
    operations = samples.operations
    run = unigrad.microbatch(
        lambda x: {"y": x * 2.0, "total": operations.reshape(operations.sum(x), (1,))},
        size=2,
        blocks=spare(samples),
        combine={"total": "sum"},
        verify=True,
    )
    found = run(samples.tensor(f32([[1], [2], [3], [4], [5]])))
    np.testing.assert_array_equal(to_numpy(found["total"]), [15])
    np.testing.assert_array_equal(to_numpy(found["y"]), [[2], [4], [6], [8], [10]])


@pytest.mark.clause("M2")
def test_a_constant_that_is_no_number_is_equal_in_all_parts(samples):
    run = unigrad.microbatch(lambda x: (x * 2.0, math.nan), size=2, blocks=spare(samples))
    assert math.isnan(run(samples.tensor(array(5, 3)))[1])


@pytest.mark.clause("M3")
def test_a_size_may_be_a_whole_number_of_numpy(samples):
    run = unigrad.microbatch(lambda x: x * 2.0, size=np.int64(2), blocks=spare(samples))
    np.testing.assert_array_equal(to_numpy(run(samples.tensor(f32([[1], [2], [3]])))), [[2], [4], [6]])

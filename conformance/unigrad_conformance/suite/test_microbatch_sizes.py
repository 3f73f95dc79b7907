"""Sizes of parts and batches, and what cannot be split (clause M3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad import ArgumentError, ArgumentTypeError
from unigrad_conformance.suite.parts import loop, step
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

pytestmark = pytest.mark.clause("M3")


def lengths(samples, batch, size, axis=0):
    """Return the lengths of the parts that a function sees, in order, at a call that is not the first."""
    weight = samples.leaf(array(5))
    seen = []

    def function(x):
        seen.append(to_numpy(x).shape[axis])
        return x * samples.operations.sum(weight)

    shape = (batch, 3) if axis == 0 else (3, batch)
    split = unigrad.microbatch(function, size, blocks=unigrad.wrap({"weight": weight}), batch_axis=axis)
    for _ in range(2):
        seen.clear()
        found = to_numpy(split(samples.tensor(array(*shape))))
        same_bits({"y": found}, {"y": array(*shape) * to_numpy(samples.operations.sum(weight))})
    return seen


@pytest.mark.parametrize(
    ("batch", "size", "expected"),
    [
        pytest.param(3, 1, [1, 1, 1], id="size-one"),
        pytest.param(6, 2, [2, 2, 2], id="even"),
        pytest.param(7, 3, [3, 3, 1], id="uneven"),
        pytest.param(4, 4, [4], id="the-batch"),
        pytest.param(4, 9, [4], id="above-the-batch"),
        pytest.param(1, 1, [1], id="one-sample"),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_parts_have_the_given_size_and_the_last_one_the_rest(samples, batch, size, expected, axis):
    assert lengths(samples, batch, size, axis) == expected


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_an_error_at_once(samples, size):
    with pytest.raises(ArgumentError, match="at least 1"):
        unigrad.microbatch(dense(samples, 3, 2), size)


@pytest.mark.parametrize("size", [1.5, "2", None, True], ids=repr)
def test_a_size_that_is_no_whole_number_is_an_error_at_once(samples, size):
    with pytest.raises(ArgumentTypeError, match="number of samples"):
        unigrad.microbatch(dense(samples, 3, 2), size)


@pytest.mark.parametrize("axis", [-1, 0.0, None, False], ids=repr)
def test_a_batch_axis_that_is_no_axis_is_an_error_at_once(samples, axis):
    with pytest.raises(ArgumentError, match="batch_axis"):
        unigrad.microbatch(dense(samples, 3, 2), 2, batch_axis=axis)


@pytest.mark.parametrize("flag", ["verify", "allow_coupled"])
def test_a_flag_that_is_no_truth_value_is_an_error_at_once(samples, flag):
    wrong: dict[str, Any] = {flag: "no"}
    with pytest.raises(ArgumentTypeError, match=flag):
        unigrad.microbatch(dense(samples, 3, 2), 2, **wrong)


def test_what_is_no_model_is_an_error_at_once(samples):
    with pytest.raises(ArgumentTypeError, match="microbatch"):
        unigrad.microbatch(3, 2)
    with pytest.raises(ArgumentTypeError, match="no call"):
        unigrad.microbatch(unigrad.wrap({"weight": samples.leaf(array(1))}), 2)


def refused(samples, function, arguments, words, **options):
    """Assert that a call is refused before the collector has changed, and that the collector goes on working."""
    model = dense(samples, 3, 2)
    block = unigrad.wrap(model)
    x = samples.tensor(array(4, 3))
    split = unigrad.microbatch(lambda *args, **kwargs: function(block, *args, **kwargs), 2, blocks=block, **options)
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(block(x)))
        before = gradients_of(collector)
        with pytest.raises(ArgumentError, match=words):
            split(*arguments)
        same_bits(gradients_of(collector), before)
        collector.backward(samples.operations.sum(block(x)))
        same_bits(gradients_of(collector), before)


def test_an_empty_batch(samples):
    refused(samples, lambda block, x: block(x), [samples.tensor(np.zeros((0, 3), "float32"))], "empty")


def test_inputs_of_different_batch_name_them(samples):
    arguments = [samples.tensor(array(4, 3)), samples.tensor(array(3, 3))]
    refused(samples, lambda block, x, y: block(x), arguments, r"argument.*has 4.*has 3.*whole=")


def test_an_argument_without_the_batch_axis(samples):
    arguments = [samples.tensor(array(4, 3)), samples.tensor(np.float32(2))]
    refused(samples, lambda block, x, y: block(x), arguments, r"no axis 0 to split.*whole=")


def test_no_tensor_to_split(samples):
    refused(samples, lambda block, x: block(x), [3], "at least one tensor argument")


def test_everything_given_whole(samples):
    weight = samples.leaf(array(3))
    split = unigrad.microbatch(lambda x: x * weight, 2, blocks=unigrad.wrap({"weight": weight}), whole="x")
    with pytest.raises(ArgumentError, match="at least one tensor argument"):
        split(samples.tensor(array(4, 3)))


def test_an_output_without_the_batch_axis(samples):
    refused(
        samples,
        lambda block, x: samples.operations.sum(block(x)),
        [samples.tensor(array(4, 3))],
        r"output has shape \(\).*combine",
    )


def test_an_output_of_another_batch(samples):
    refused(
        samples,
        lambda block, x: samples.operations.sum(x, 0),
        [samples.tensor(array(4, 3))],
        r"output has shape \(3,\) for a part of [12] samples.*combine",
    )


def test_an_output_of_another_batch_is_refused_for_one_part_too(samples):
    # Else the error would come only once a batch is large enough.
    refused(
        samples,
        lambda block, x: samples.operations.sum(block(x), 0),
        [samples.tensor(array(1, 3))],
        r"no batch axis 0.*combine",
    )


def test_another_batch_axis(samples):
    ops = samples.operations
    weight = samples.leaf(array(3, 3, seed=1))
    block = unigrad.wrap({"weight": weight})

    def function(x):
        return ops.tanh(ops.matmul(weight, x))

    inputs = {"x": samples.tensor(array(3, 1, seed=2))}
    split = unigrad.microbatch(function, 2, blocks=block, batch_axis=1)
    found = step(samples, block, split, inputs)
    same_bits(found.all(), step(samples, block, loop(samples, function, 2, axis=1), inputs).all())


def test_exceptions_of_the_function_keep_their_type(samples):
    class OwnError(Exception):
        pass

    weight = samples.leaf(array(3))
    calls = []

    def function(x):
        calls.append(x)
        if len(calls) == 2:
            raise OwnError("in the second part")
        return x * weight

    block = unigrad.wrap({"weight": weight})
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        with pytest.raises(OwnError, match="second part"):
            unigrad.microbatch(function, 2, blocks=block)(samples.tensor(array(5, 3)))
        assert not collector.gradients


def test_an_output_whose_batch_axis_is_another_one_of_the_same_length_is_an_error(samples):
    """The state of two recurrent layers, ``(layers, batch, features)``, in parts of two samples."""
    weight = samples.leaf(array(2, 1, 3))

    def function(x):
        return samples.operations.sum(x), samples.operations.reshape(x, (1, to_numpy(x).shape[0], 3)) * weight

    block = unigrad.wrap({"weight": weight})
    x = samples.tensor(array(4, 3))
    split = unigrad.microbatch(function, 2, blocks=block, combine="sum")
    with pytest.raises(ArgumentError, match=r"output.*\(2, 1, 3\) for a part of 1 samples"):
        split(x)


def test_a_mean_over_the_batch_is_no_output_with_a_batch_axis(samples):
    """Its features, as many as a part has samples, are not joined as if they were samples."""
    weight = samples.leaf(array(2))

    def function(x):
        return samples.operations.sum(x * weight, 0)

    split = unigrad.microbatch(function, 2, blocks=unigrad.wrap({"weight": weight}))
    with pytest.raises(ArgumentError, match=r"output has shape \(2,\) for a part of 1 samples"):
        split(samples.tensor(array(6, 2)))


def test_an_output_of_constant_length_has_no_batch_axis(samples):
    """As many values as a part has samples, whatever the batch: no width of a parameter or an argument tells so."""
    weight = samples.leaf(array(3))

    def function(x):
        return x * weight, samples.tensor(array(4)) * samples.operations.sum(x)

    split = unigrad.microbatch(function, 4, blocks=unigrad.wrap({"weight": weight}))
    with pytest.raises(ArgumentError, match=r"output\[1\] has shape \(4,\) for a part of 3 samples"):
        split(samples.tensor(array(8, 3)))


def test_the_batch_axis_of_an_output_is_looked_at_once(samples):
    weight = samples.leaf(array(1))
    calls = []

    def function(x):
        calls.append(to_numpy(x).shape)
        return x * weight

    split = unigrad.microbatch(function, 3, blocks=unigrad.wrap({"weight": weight}))
    for width in (3, 4):
        found = to_numpy(split(samples.tensor(array(6, width))))
        same_bits({"y": found}, {"y": array(6, width) * array(1)})
    assert calls == [(3, 3), (3, 3), (2, 3), (3, 4), (3, 4)]


def test_a_run_to_tell_axes_apart_leaves_random_numbers_and_buffers_alone(samples):
    def function(x):
        return samples.operations.dropout(x, 0.5)

    x = samples.tensor(np.ones((4, 2), "float32"))
    unigrad.seed(3)
    split = unigrad.microbatch(function, 2, blocks=unigrad.wrap({"weight": samples.leaf(array(1))}))
    found, after = to_numpy(split(x)), to_numpy(samples.operations.uniform((3,)))
    unigrad.seed(3)
    parts = [function(samples.tensor(np.ones((2, 2), "float32"))) for _ in range(2)]
    same_bits({"y": found}, {"y": np.concatenate([to_numpy(part) for part in parts])})
    same_bits({"next": after}, {"next": to_numpy(samples.operations.uniform((3,)))})

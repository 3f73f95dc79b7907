"""Faults of kind J, microbatching inside a model, with the values that are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad import BatchCoupledError
from unigrad_conformance.suite.problems import array, gradients_of, to_numpy

# The values of the cases are given to six decimals.
DECIMALS: dict[str, Any] = {"rtol": 0, "atol": 2e-6}


def trunk_and_neck(samples, size):
    """Return the block of case 75 and its call; the neck runs in parts of ``size``, whole for None."""
    ops = samples.operations

    def neck(h):
        y = ops.matmul(h, block.parameters["neck"])
        return y * y

    block = unigrad.wrap(
        {
            "trunk": samples.leaf(np.array([[1.0, 2.0]], "float32")),
            "neck": samples.leaf(np.array([[3.0], [-1.0]], "float32")),
        }
    )
    call = neck if size is None else unigrad.microbatch(neck, size, blocks=block)
    return block, lambda x: call(ops.tanh(ops.matmul(x * 0.1, block.parameters["trunk"])))


@pytest.mark.clause("M1", "M2", "M3")
@pytest.mark.case(75)
@pytest.mark.parametrize("size", [None, 1, 2, 3, 5, 7], ids=lambda size: f"size {size}" if size else "whole")
def test_a_neck_in_parts_has_the_gradients_of_the_whole(samples, record, size):
    block, call = trunk_and_neck(samples, size)
    x = samples.tensor(np.arange(1, 6, dtype="float32")[:, None])
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        y = call(x)
        collector.backward(samples.operations.sum(y))
    np.testing.assert_allclose(to_numpy(y).ravel(), [0.010328, 0.045019, 0.113494, 0.226395, 0.390322], **DECIMALS)
    found = gradients_of(collector)
    np.testing.assert_allclose(found["trunk"], [[3.311112, -0.711171]], **DECIMALS)
    # Added once: a second time would be twice as much.
    np.testing.assert_allclose(found["neck"], [[1.239284], [2.146736]], **DECIMALS)
    record("gradients", collector.gradients, terms=20, reason="sums over 5 samples and 2 units, a tanh and a square")


@pytest.mark.clause("M1", "G10")
@pytest.mark.case(82)
@pytest.mark.parametrize("size", [None, 1, 2, 3, 4], ids=lambda size: f"size {size}" if size else "whole")
def test_a_contrastive_loss_over_an_encoder_in_parts(samples, record, size):
    ops = samples.operations
    weight = samples.leaf(np.eye(2, dtype="float32"))
    block = unigrad.wrap({"weight": weight})

    def encoder(x):
        return ops.matmul(x, weight)

    encode = encoder if size is None else unigrad.microbatch(encoder, size, blocks=block)
    left = samples.tensor(np.array([[1, 0], [0, 1], [1, 1], [2, -1]], "float32"))
    right = samples.tensor(np.array([[1, 1], [0, 2], [1, 0], [1, -1]], "float32"))
    with unigrad.GradientCollector(block) as collector:
        logits = ops.matmul(encode(left), ops.transpose(encode(right), (1, 0)))
        loss = ops.cross_entropy(logits, samples.tensor(np.arange(4)))
        collector.backward(loss)
    np.testing.assert_allclose(to_numpy(loss), 0.996032, **DECIMALS)
    expected = [[-0.258821, 0.299120], [0.299120, 0.100383]]
    np.testing.assert_allclose(to_numpy(collector.gradients["weight"]), expected, **DECIMALS)
    record("loss", loss, terms=24, reason="exponentials, sums of 4 and a mean of 4")
    record("gradient", collector.gradients["weight"], terms=40, scale=1.0, reason="the loss, and sums over 8 rows")


def normalization(samples):
    """Return the block of one batch normalization over one channel, and the batch 1, 3, 5, 7."""
    block = unigrad.wrap(samples.layer("batch_norm", channels=1, momentum=0.1, epsilon=1e-5, affine=True)).train()
    return block, samples.tensor(np.array([[1.0], [3.0], [5.0], [7.0]], "float32"))


def statistics(block):
    """Return the running mean and variance of one channel."""
    return tuple(float(to_numpy(block.buffers[name])[0]) for name in ("running_mean", "running_var"))


@pytest.mark.clause("M5")
@pytest.mark.case(83)
def test_batch_normalization_is_refused_in_parts(samples, record):
    block, x = normalization(samples)
    unbiased = samples.conventions["running_variance"] == "unbiased"
    with unigrad.GradientCollector(block) as collector:
        with pytest.raises(BatchCoupledError, match=r"statistics over the batch.*allow_coupled"):
            unigrad.microbatch(block, 2)(x)
        assert statistics(block) == (0.0, 1.0)
        # The variance of the batch is 5, or 20 / 3 without bias.
        y = block(x)
        collector.backward(samples.operations.sum(y * samples.tensor(array(4, 1))))
    np.testing.assert_allclose(statistics(block), (0.4, 1.566667 if unbiased else 1.4), **DECIMALS)
    record("output", y, terms=12, reason="mean and variance of 4 values")


@pytest.mark.clause("M5")
@pytest.mark.case(83)
def test_statistics_of_each_part_only_by_name(samples):
    block, x = normalization(samples)
    unbiased = samples.conventions["running_variance"] == "unbiased"
    unigrad.microbatch(block, 2, allow_coupled=True)(x)
    # Means 2 and 6; variances 1 and 1, or 2 and 2 without bias.
    np.testing.assert_allclose(statistics(block), (0.78, 1.19 if unbiased else 1.0), **DECIMALS)

"""Real faults of kind D: a recompute changes statistics, counters and other state again."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.problems import array, same_bits, to_numpy

BATCH = np.array([[1], [3]], "float32")


def _norm(samples):
    return samples.layer("batch_norm", channels=1, momentum=0.1, epsilon=1e-5, affine=True)


@pytest.mark.case(30)
@pytest.mark.clause("C3", "X3")
def test_running_statistics_move_once(samples, record):
    block = unigrad.wrap(_norm(samples)).train()
    variance = 1.1 if samples.conventions["running_variance"] == "unbiased" else 1.0

    def check():
        np.testing.assert_allclose(to_numpy(block.buffers["running_mean"]), [0.2], rtol=1e-6)
        np.testing.assert_allclose(to_numpy(block.buffers["running_var"]), [variance], rtol=1e-6)

    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(unigrad.checkpoint(block)(samples.tensor(BATCH)))
        check()
        collector.backward(loss, retain_graph=True)
        check()
        collector.backward(loss)
    check()
    record("mean", block.buffers["running_mean"], terms=3, reason="a mean of two and one interpolation")


def _counting(samples):
    def forward(self, x):
        samples.set_buffer(self, "seen", self.seen + 1)
        return self.norm(self.conv(x))

    return samples.model(
        forward,
        buffers={"seen": np.array([0], "int64")},
        layers={
            "conv": samples.layer("conv2d", weight=array(2, 1, 3, 3), bias=array(2), stride=1, padding=0),
            "norm": samples.layer("batch_norm", channels=2, momentum=0.1, epsilon=1e-5, affine=True),
        },
    )


@pytest.mark.case(31)
@pytest.mark.clause("C3", "B2")
def test_counters_after_three_steps_are_three(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_counting(samples)).train()
        for index in range(3):
            with unigrad.GradientCollector(block) as collector:
                x = samples.tensor(array(2, 1, 5, 5, seed=index))
                collector.backward(samples.operations.sum(checkpoint(block)(x)))
        found.append({name: to_numpy(value) for name, value in block.buffers.items()})
    assert found[1]["seen"].tolist() == [3]
    same_bits(*found)
    counters = [name for name, value in found[1].items() if value.dtype.kind == "i"]
    assert all(int(found[1][name].ravel()[0]) == 3 for name in counters)


@pytest.mark.case(33)
@pytest.mark.clause("C3")
@pytest.mark.parametrize("backward", [False, True], ids=["forward-only", "with-backward"])
def test_statistics_do_not_depend_on_a_backward(samples, backward):
    """A halved momentum that hides a double update gives 0.102633 here without a backward."""
    block = unigrad.wrap(_norm(samples)).train()
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(run(samples.tensor(BATCH)))
        if backward:
            collector.backward(loss)
    np.testing.assert_allclose(to_numpy(block.buffers["running_mean"]), [0.2], rtol=1e-6)


@pytest.mark.case(33)
@pytest.mark.clause("C3", "C13")
def test_settings_of_the_layer_are_untouched(samples):
    """A later plain call interpolates with the layer's own momentum: 0.2 * 0.9 + 2 * 0.1."""
    model = _norm(samples)
    block = unigrad.wrap(model).train()
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(run(samples.tensor(BATCH))))
    block(samples.tensor(BATCH))
    np.testing.assert_allclose(to_numpy(block.buffers["running_mean"]), [0.38], rtol=1e-6)

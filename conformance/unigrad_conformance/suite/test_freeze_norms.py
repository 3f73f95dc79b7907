"""B9: a frozen normalization layer uses its running statistics and leaves them alone, whatever the mode."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.block_problems import collect, norm_model, state_bits
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.clause("B9", "B3")

BATCH = np.array([[1.0], [3.0]], "float32")

WAYS = {
    "call": lambda block: block,
    "checkpoint-of-block": unigrad.checkpoint,
    "checkpoint-of-model": lambda block: unigrad.checkpoint(block.native),
    "checkpoint-of-function": lambda block: unigrad.checkpoint(lambda x: block(x), blocks=[block]),
    "microbatch-of-block": lambda block: unigrad.microbatch(block, 1),
    "microbatch-of-model": lambda block: unigrad.microbatch(block.native, 1),
}


@pytest.mark.case(34)
def test_frozen_statistics_stay_at_zero(samples, record):
    block = unigrad.wrap(norm_model(samples)).train().freeze()
    block(samples.tensor(BATCH))
    mean = to_numpy(block.buffers["norm.running_mean"])
    assert mean.tolist() == [0.0]
    record("mean", mean, reason="nothing is computed")


@pytest.mark.case(34)
def test_free_statistics_move(samples):
    block = unigrad.wrap(norm_model(samples)).train()
    block(samples.tensor(BATCH))
    np.testing.assert_allclose(to_numpy(block.buffers["norm.running_mean"]), [0.2], rtol=1e-6)  # one rounded product


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_a_frozen_layer_normalizes_by_its_running_statistics(samples, affine, way):
    block = unigrad.wrap(norm_model(samples, affine=affine)).train().freeze("norm")
    before = state_bits(block)
    run = WAYS[way](block)
    ops = samples.operations
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(BATCH), "x")
        out = run(x)
        collector.backward(ops.sum(out))
    # mean 0 and variance 1: the output is x / sqrt(1 + 1e-5), at three float32 roundings
    np.testing.assert_allclose(to_numpy(out), BATCH / np.sqrt(1 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(to_numpy(collector.input_gradients["x"]), 1 / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert state_bits(block) == before
    assert block.training is True


@pytest.mark.parametrize(
    "region", [unigrad.checkpoint, lambda model: unigrad.microbatch(model, 1)], ids=["whole", "parts"]
)
def test_what_the_framework_froze_is_frozen_in_a_region_of_a_native_model(samples, backend, region):
    """The call of a region is that of the block (C0), whoever calls it."""
    block = unigrad.wrap(norm_model(samples)).train()
    for tensor in block.parameters.values():
        backend.block.set_trainable(tensor, False)
    out = region(block.native)(samples.tensor(BATCH))
    # mean 0 and variance 1, at three float32 roundings
    np.testing.assert_allclose(to_numpy(out), BATCH / np.sqrt(1 + 1e-5), rtol=1e-6)


def test_only_the_frozen_layer_is_held(samples):
    model = samples.model(
        lambda self, x: self.free(self.held(x)), layers={"held": norm_model(samples), "free": norm_model(samples)}
    )
    block = unigrad.wrap(model).train().freeze("held")
    block(samples.tensor(BATCH))
    assert to_numpy(block.buffers["held.norm.running_mean"]).tolist() == [0.0]
    assert to_numpy(block.buffers["free.norm.running_mean"]).tolist() != [0.0]


def test_freezing_a_statistic_alone_keeps_it_unchanged(samples):
    block = unigrad.wrap(norm_model(samples)).train().freeze("*.running_mean")
    block(samples.tensor(BATCH))
    assert to_numpy(block.buffers["norm.running_mean"]).tolist() == [0.0]
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(ops.sin(block(samples.tensor(BATCH)))))
    assert list(collector.gradients) == ["norm.weight", "norm.bias"]


def test_an_unfrozen_layer_uses_the_batch_again(samples):
    block = unigrad.wrap(norm_model(samples)).train().freeze().unfreeze()
    out = to_numpy(block(samples.tensor(BATCH)))
    # batch mean 2, variance 1
    np.testing.assert_allclose(out, (BATCH - 2) / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert to_numpy(block.buffers["norm.running_mean"]).tolist() != [0.0]


def test_a_part_frozen_as_its_own_block_is_frozen_in_the_whole(samples):
    part = norm_model(samples)
    unigrad.wrap(part).freeze()
    block = unigrad.wrap(samples.model(lambda self, x: self.part(x), layers={"part": part})).train()
    block(samples.tensor(BATCH))
    assert to_numpy(block.buffers["part.norm.running_mean"]).tolist() == [0.0]


def test_freezing_between_forwards_takes_effect_at_once(samples):
    block = unigrad.wrap(norm_model(samples)).train()
    block(samples.tensor(BATCH))
    after_one = state_bits(block)
    block.freeze()
    for _ in range(2):
        block(samples.tensor(array(4, 1)))
    assert state_bits(block) == after_one

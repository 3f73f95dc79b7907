"""Checkpoint: buffers change once, at forward time, and the recompute sees them as they were."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense, same_bits, to_numpy
from unigrad_conformance.suite.regions import build_and_compare, total


def _batch_norm(samples, momentum=0.1):
    return samples.layer("batch_norm", channels=3, momentum=momentum, epsilon=1e-5, affine=True)


def _stack(samples):
    return samples.layer("sequential", layers=[dense(samples, 2, 3), _batch_norm(samples), dense(samples, 3, 2)])


def _counting(samples):
    """Return a model whose output depends on an integer counter that each call increments."""

    def forward(self, x):
        y = x * (samples.operations.cast(self.count, "float32") + 1.0)
        samples.set_buffer(self, "count", self.count + 1)
        return y

    return samples.model(forward, buffers={"count": np.array([0, 10], "int64")})


def _buffers(block):
    return {name: to_numpy(value) for name, value in block.buffers.items()}


@pytest.mark.clause("C3", "C1")
@pytest.mark.parametrize("backwards", [1, 3])
def test_batch_statistics_move_once_however_many_backwards(samples, backwards):
    build_and_compare(samples, lambda: _stack(samples), array(5, 2), backwards=backwards)


@pytest.mark.clause("C3")
def test_batch_statistics_move_at_forward_time_without_a_backward(samples):
    plain, rerun = unigrad.wrap(_stack(samples)).train(), unigrad.wrap(_stack(samples)).train()
    for block, run in ((plain, plain), (rerun, unigrad.checkpoint(rerun))):
        with unigrad.GradientCollector(block):
            run(samples.tensor(array(5, 2)))
    assert to_numpy(plain.buffers["1.running_mean"]).any()
    same_bits(_buffers(plain), _buffers(rerun))


@pytest.mark.clause("C3")
def test_backward_changes_no_buffer(samples):
    block = unigrad.wrap(_stack(samples)).train()
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(5, 2))))
        after_forward = _buffers(block)
        objects = [id(value) for value in block.buffers.values()]
        collector.backward(loss)
    same_bits(after_forward, _buffers(block))
    assert [id(value) for value in block.buffers.values()] == objects, "the model holds other buffers than before"


@pytest.mark.clause("C3")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_nested_regions_move_buffers_once(samples):
    def twice(block):
        inner = samples.layer("sequential", layers=[unigrad.checkpoint(block.native)])
        return unigrad.checkpoint(unigrad.wrap(inner).train())

    found = []
    for nest in (lambda block: block, twice):
        block = unigrad.wrap(_stack(samples)).train()
        with unigrad.GradientCollector(block) as collector:
            loss = total(samples, nest(block)(samples.tensor(array(5, 2))))
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        found.append(_buffers(block))
    same_bits(*found)


@pytest.mark.clause("C3", "B2")
def test_custom_integer_buffer_counts_each_forward_once(samples, record):
    block = unigrad.wrap(_counting(samples))
    run = unigrad.checkpoint(block)
    for index in range(3):
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(samples.tensor(array(2)), name="x")
            collector.backward(samples.operations.sum(run(x)))
        assert to_numpy(block.buffers["count"]).tolist() == [index + 1, index + 11]
        assert to_numpy(collector.input_gradients["x"]).tolist() == [index + 1, index + 11]
    record("dtype of the counter", str(to_numpy(block.buffers["count"]).dtype))


@pytest.mark.clause("C3")
def test_recompute_sees_the_buffers_of_its_own_forward(samples):
    """Two calls before any backward: each recompute starts from another count."""
    block = unigrad.wrap(_counting(samples))
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block, parameters=False) as collector:
        first = collector.watch(samples.tensor(array(2)), name="first")
        second = collector.watch(samples.tensor(array(2)), name="second")
        losses = [samples.operations.sum(run(x)) for x in (first, second)]
        collector.backward(losses[1] + losses[0])
    assert to_numpy(collector.input_gradients["first"]).tolist() == [1, 11]
    assert to_numpy(collector.input_gradients["second"]).tolist() == [2, 12]
    assert to_numpy(block.buffers["count"]).tolist() == [2, 12]


@pytest.mark.clause("C3", "C5")
def test_each_recompute_sees_the_buffers_of_the_forward(samples):
    """Several backwards of one call: what the first recompute wrote is not what the second one sees."""
    block = unigrad.wrap(_counting(samples))
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(2)), name="x")
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        for retain in (True, True, False):
            collector.backward(loss, retain_graph=retain)
            assert to_numpy(collector.input_gradients["x"]).tolist() == [1, 11]
    assert to_numpy(block.buffers["count"]).tolist() == [1, 11]


@pytest.mark.clause("C3")
def test_buffer_written_between_forward_and_backward_stays_written(samples):
    block = unigrad.wrap(_counting(samples))
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(2)), name="x")
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        block.load_state({"count": np.array([50, 60], "int64")})
        collector.backward(loss)
    assert to_numpy(collector.input_gradients["x"]).tolist() == [1, 11]
    assert to_numpy(block.buffers["count"]).tolist() == [50, 60]


@pytest.mark.clause("C3", "C1")
def test_inference_mode_uses_the_statistics_of_the_forward(samples):
    """Running statistics that move between forward and backward do not reach the recompute."""
    gradients = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_stack(samples)).eval()
        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(samples.tensor(array(5, 2)), name="x")
            loss = total(samples, checkpoint(block)(x))
            state = block.state()
            with samples.no_grad():
                block.train()(samples.tensor(array(5, 2, seed=1)))
            moved = _buffers(block)
            if checkpoint is unigrad.checkpoint:
                collector.backward(loss)
                same_bits(moved, _buffers(block))
            else:
                # The plain graph reads the live statistics, so its reference is taken from the ones at the forward.
                block.load_state(state)
                block.eval()
                collector.backward(total(samples, block(x)))
        gradients.append({name: to_numpy(value) for name, value in collector.gradients.items()})
    same_bits(*gradients)


@pytest.mark.clause("C3", "B9")
def test_frozen_normalization_stays_frozen_in_the_recompute(samples):
    def build():
        model = _stack(samples)
        unigrad.wrap(model).freeze("1")
        return model

    found = build_and_compare(samples, build, array(5, 2))
    assert not found["buffer 1.running_mean"].any()
    assert "gradient of 1.weight" not in found
    assert "gradient of 0.weight" in found


@pytest.mark.clause("C3")
def test_no_grad_call_moves_buffers_once(samples):
    block = unigrad.wrap(_counting(samples))
    with samples.no_grad():
        unigrad.checkpoint(block)(samples.tensor(array(2)))
    assert to_numpy(block.buffers["count"]).tolist() == [1, 11]


@pytest.mark.clause("C3", "C11")
def test_failing_recompute_leaves_buffers_as_they_were(samples):
    calls: list[None] = []

    def forward(self, x):
        calls.append(None)
        samples.set_buffer(self, "count", self.count + 1)
        if len(calls) > 1:
            raise ZeroDivisionError("in the recompute")
        return samples.operations.tanh(x)

    block = unigrad.wrap(samples.model(forward, buffers={"count": np.array([0], "int64")}))
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(2)), name="x")
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        with pytest.raises(ZeroDivisionError, match="in the recompute"):
            collector.backward(loss)
    assert to_numpy(block.buffers["count"]).tolist() == [1]

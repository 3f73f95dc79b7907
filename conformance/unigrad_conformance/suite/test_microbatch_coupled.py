"""Samples that depend on each other are refused, and what the call moved is put back (clause M5)."""

from __future__ import annotations

import random

import numpy as np
import pytest

import unigrad
from unigrad import BatchCoupledError
from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.suite.parts import loop, step
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

pytestmark = pytest.mark.clause("M5")


def normalized(samples):
    """Return the block of dense, batch normalization and dense; the second one is the layer ``1``."""
    norm = samples.layer("batch_norm", channels=4, momentum=0.1, epsilon=1e-5, affine=True)
    return unigrad.wrap(
        samples.layer("sequential", layers=[dense(samples, 3, 4, seed=1), norm, dense(samples, 4, 2, seed=2)])
    )


def counting(samples):
    """Return a block whose forward counts its calls in the buffer ``calls``."""

    def forward(self, x):
        samples.set_buffer(self, "calls", self.calls + 1.0)
        samples.operations.normal((3,))
        return x * self.weight + np.random.standard_normal() + random.random()

    return unigrad.wrap(
        samples.model(forward, parameters={"weight": array(3)}, buffers={"calls": np.zeros(2, "float32")})
    )


def buffers(block):
    """Return the values of all buffers."""
    return {name: to_numpy(value) for name, value in block.buffers.items()}


def random_draws(samples):
    """Return the next numbers of the global generators."""
    return {
        "native": to_numpy(samples.operations.normal((4,))),
        "numpy": np.random.standard_normal(4),
        "python": np.array([random.random() for _ in range(4)]),
    }


@pytest.mark.case(83)
def test_batch_normalization_in_training_names_the_layer(samples, record):
    block = normalized(samples).train()
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        with pytest.raises(BatchCoupledError, match=r"^1 ") as caught:
            unigrad.microbatch(block, 2)(samples.tensor(array(4, 3)))
        assert not collector.gradients
    assert "allow_coupled=True" in str(caught.value)
    record("error", type(caught.value).__name__)


def test_the_layer_itself_is_named_by_its_type(samples):
    norm = samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)
    block = unigrad.wrap(norm).train()
    with pytest.raises(BatchCoupledError, match=type(norm).__name__):
        unigrad.microbatch(block, 2)(samples.tensor(array(4, 3)))


@pytest.mark.parametrize("recording", [True, False], ids=["recorded", "not-recorded"])
def test_a_refused_normalization_leaves_buffers_and_random_state(samples, recording):
    block = normalized(samples).train()
    block(samples.tensor(array(4, 3)))
    before = buffers(block)
    unigrad.seed(3)
    expected = random_draws(samples)
    unigrad.seed(3)
    split = unigrad.microbatch(block, 2)
    if recording:
        with unigrad.GradientCollector(block, on_unused="ignore"), pytest.raises(BatchCoupledError):
            split(samples.tensor(array(4, 3)))
    else:
        with samples.no_grad(), pytest.raises(BatchCoupledError):
            split(samples.tensor(array(4, 3)))
    same_bits(buffers(block), before)
    same_bits(random_draws(samples), expected)
    assert block.training


@pytest.mark.parametrize("recording", [True, False], ids=["recorded", "not-recorded"])
@pytest.mark.parametrize("batch", [1, 5])
def test_any_buffer_that_moves_is_refused_and_put_back(samples, batch, recording):
    block = counting(samples)
    block(samples.tensor(array(2, 3)))
    live = block.buffers["calls"]
    before = buffers(block)
    unigrad.seed(4)
    expected = random_draws(samples)
    unigrad.seed(4)
    split = unigrad.microbatch(block, 2)
    if recording:
        with unigrad.GradientCollector(block, on_unused="ignore"), pytest.raises(BatchCoupledError, match="calls"):
            split(samples.tensor(array(batch, 3)))
    else:
        with samples.no_grad(), pytest.raises(BatchCoupledError, match="calls"):
            split(samples.tensor(array(batch, 3)))
    same_bits(buffers(block), before)
    same_bits({"calls": to_numpy(live)}, before)
    same_bits(random_draws(samples), expected)


def test_a_buffer_that_only_the_last_part_moves(samples):
    def forward(self, x):
        if to_numpy(x).shape[0] == 1:
            samples.set_buffer(self, "calls", self.calls + 1.0)
        return x * self.weight

    buffer = np.zeros(2, "float32")
    block = unigrad.wrap(samples.model(forward, parameters={"weight": array(3)}, buffers={"calls": buffer}))
    split = unigrad.microbatch(block, 2)
    split(samples.tensor(array(4, 3)))
    with pytest.raises(BatchCoupledError, match="calls"):
        split(samples.tensor(array(5, 3)))
    same_bits(buffers(block), {"calls": buffer})


def test_a_refused_call_leaves_the_collector_as_it_was(samples):
    block = normalized(samples).train()
    x = samples.tensor(array(4, 3))
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(samples.operations.tanh(block(x)))
        collector.backward(loss, retain_graph=True)
        before = gradients_of(collector)
        with pytest.raises(BatchCoupledError):
            unigrad.microbatch(block, 2)(x)
        same_bits(gradients_of(collector), before)
        collector.backward(loss)
        same_bits(gradients_of(collector), before)


@pytest.mark.parametrize("how", ["eval", "frozen"])
def test_normalization_by_running_statistics_is_split(samples, how):
    block = normalized(samples).train()
    block(samples.tensor(array(8, 3, seed=9)))
    if how == "eval":
        block.eval()
    else:
        block.freeze("1")
    before = buffers(block)
    inputs = {"x": samples.tensor(array(5, 3))}
    positional = {
        "split": lambda x: unigrad.microbatch(block, 2)(x),
        "loop": lambda x: loop(samples, lambda x: block(x), 2)(x=x),
    }
    found, reference = (step(samples, block, call, inputs) for call in positional.values())
    same_bits(buffers(block), before)
    same_bits(found.outputs, reference.outputs)
    same_bits(found.inputs, reference.inputs)
    assert sorted(found.gradients) == sorted(reference.gradients)
    assert ("1.weight" in found.gradients) == (how == "eval")


@pytest.mark.clause("M1")
def test_allow_coupled_is_the_loop_with_the_statistics_of_each_part(samples, guarantee):
    first, second = normalized(samples).train(), normalized(samples).train()
    inputs = {"x": samples.tensor(array(6, 3))}
    found = step(samples, first, lambda x: unigrad.microbatch(first, 2, allow_coupled=True)(x), inputs)
    reference = step(samples, second, lambda x: loop(samples, lambda x: second(x), 2)(x=x), inputs)
    same_bits(found.outputs, reference.outputs)
    same_bits(buffers(first), buffers(second))
    if guarantee(Guarantee.BITEXACT_SHARING) == "kept":
        same_bits(found.all(), reference.all())


def test_allow_coupled_moves_each_buffer_once_a_part(samples):
    block = counting(samples)
    with unigrad.GradientCollector(block) as collector:
        y = unigrad.microbatch(block, 2, allow_coupled=True)(samples.tensor(array(5, 3)))
        same_bits(buffers(block), {"calls": np.full(2, 3, "float32")})
        collector.backward(samples.operations.sum(y))
    same_bits(buffers(block), {"calls": np.full(2, 3, "float32")})


@pytest.mark.needs(Capability.OWN_GENERATORS)
def test_random_state_is_no_coupling(samples):
    def forward(self, x):
        return x * self.weight + samples.own_normal(self.noise, (3,))

    block = unigrad.wrap(samples.model(forward, parameters={"weight": array(3)}, generators={"noise": 2}))
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(unigrad.microbatch(block, 2)(samples.tensor(array(5, 3)))))
    assert list(collector.gradients) == ["weight"]


def centred(samples, weight):
    """Return a function that subtracts the mean over the batch: coupling without state."""
    ops = samples.operations
    return lambda x: (x - ops.mean(x, 0)) * weight


def test_coupling_without_state_is_found_by_the_probe(samples, record):
    weight = samples.leaf(array(3))
    split = unigrad.microbatch(centred(samples, weight), 2, blocks=unigrad.wrap({"weight": weight}), verify=True)
    with pytest.raises(BatchCoupledError, match="output") as caught:
        split(samples.tensor(array(5, 3)))
    record("error", type(caught.value).__name__)


@pytest.mark.parametrize("size", [1, 2, 4, 9])
@pytest.mark.parametrize("batch", [2, 3, 5])
def test_the_probe_finds_it_whatever_the_sizes(samples, batch, size):
    weight = samples.leaf(array(3))
    split = unigrad.microbatch(centred(samples, weight), size, blocks=unigrad.wrap({"weight": weight}), verify=True)
    with pytest.raises(BatchCoupledError):
        split(samples.tensor(array(batch, 3)))


def test_the_probe_finds_coupling_of_equal_samples(samples):
    # Exchanging equal samples would change nothing; the probe must change values.
    weight = samples.leaf(array(3))
    split = unigrad.microbatch(centred(samples, weight), 2, blocks=unigrad.wrap({"weight": weight}), verify=True)
    with pytest.raises(BatchCoupledError):
        split(samples.tensor(np.ones((4, 3), "float32")))


def test_the_probe_accepts_independent_samples_and_touches_nothing(samples):
    block = normalized(samples).train()
    block(samples.tensor(array(8, 3, seed=9)))
    block.eval()
    x = samples.tensor(array(5, 3))
    before = buffers(block)
    plain, probed = (to_numpy(unigrad.microbatch(block, 2, verify=verify)(x)) for verify in (False, True))
    same_bits({"y": probed}, {"y": plain})
    same_bits(buffers(block), before)


def test_the_probe_leaves_the_random_streams(samples):
    ops = samples.operations
    weight = samples.leaf(array(3))
    block = unigrad.wrap({"weight": weight})
    values = []
    for verify in (False, True):
        unigrad.seed(8)
        split = unigrad.microbatch(lambda x: ops.dropout(x * weight, 0.5), 2, blocks=block, verify=verify)
        values.append({"y": to_numpy(split(samples.tensor(array(6, 3)))), **random_draws(samples)})
    same_bits(values[1], values[0])


def test_without_the_probe_no_part_is_called_twice(samples):
    """The first call alone looks, by one run of another length, whether the batch axis of the output is one."""
    weight = samples.leaf(array(3))
    calls = []

    def function(x):
        calls.append(to_numpy(x).shape)
        return x * weight

    split = unigrad.microbatch(function, 2, blocks=unigrad.wrap({"weight": weight}))
    with samples.no_grad():
        split(samples.tensor(array(4, 3)))
        split(samples.tensor(array(6, 3)))
    assert calls == [(2, 3), (2, 3), (1, 3), (2, 3), (2, 3), (2, 3)]


@pytest.mark.clause("M5")
@pytest.mark.parametrize("triangle", [np.tril, np.triu], ids=["later-on-earlier", "earlier-on-later"])
def test_verify_notices_a_dependence_in_one_direction_only(samples, backend, triangle):
    """A sum over the samples before, or after, each one."""

    def run(x):
        count = backend.arrays.shape(x)[0]
        return samples.operations.matmul(samples.tensor(triangle(np.ones((count, count), "float32"))), x)

    spare = unigrad.wrap({"w": samples.leaf(array(1))})
    parts = unigrad.microbatch(run, size=2, blocks=spare, verify=True)
    with pytest.raises(unigrad.BatchCoupledError, match="only other samples change"):
        parts(samples.tensor(array(4, 3)))

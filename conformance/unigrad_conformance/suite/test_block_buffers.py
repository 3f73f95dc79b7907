"""B2: buffers are everything a forward may change or a file keeps without being trained; random state is not one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import collect, norm_model
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.clause("B2")


def counting(samples):
    def forward(self, x):
        samples.set_buffer(self, "count", self.count + 1)
        return x * self.gain

    return samples.model(forward, parameters={"gain": array(2)}, buffers={"count": np.zeros((), "float32")})


def test_statistics_of_batch_normalization_are_buffers(samples, record):
    block = unigrad.wrap(norm_model(samples)).train()
    assert list(block.parameters) == ["norm.weight", "norm.bias"]
    assert {"norm.running_mean", "norm.running_var"} <= set(block.buffers)
    block(samples.tensor(np.array([[1.0], [3.0]], "float32")))
    mean = to_numpy(block.buffers["norm.running_mean"])
    # 0.9 * 0 + 0.1 * 2, one product and one sum
    np.testing.assert_allclose(mean, [0.2], rtol=1e-6)
    record("mean", mean, terms=2, reason="one weighted sum of two values")


def test_statistics_get_no_gradient_and_are_in_no_set(samples):
    block = unigrad.wrap(norm_model(samples)).train()
    ops = samples.operations
    x = samples.tensor(array(4, 1))
    collector = collect(block, lambda: ops.sum(ops.sin(block(x))))
    assert list(collector.gradients) == ["norm.weight", "norm.bias"]
    usage = collector.usage
    assert set(usage.reached) | set(usage.unused) | set(usage.frozen) | set(usage.disconnected) == set(block.parameters)


def test_a_buffer_of_a_model_shows_what_a_forward_wrote(samples):
    block = unigrad.wrap(counting(samples))
    assert list(block.buffers) == ["count"]
    x = samples.tensor(array(2))
    for expected in (1.0, 2.0):
        block(x)
        assert to_numpy(block.buffers["count"]) == expected
    assert block.state()["count"] == 2.0


def test_the_mapping_of_buffers_is_read_only(samples):
    buffers: Any = unigrad.wrap(counting(samples)).buffers
    with pytest.raises(TypeError):
        buffers["count"] = None


def test_a_trainable_buffer_and_a_parameter_never_share_a_name(samples):
    block = unigrad.wrap(samples.model(lambda self, x: x, layers={"a": norm_model(samples), "b": counting(samples)}))
    names = [*block.parameters, *block.buffers, *block.aliases]
    assert len(set(names)) == len(names)


@pytest.mark.needs(Capability.OWN_GENERATORS)
def test_a_generator_is_random_state_and_no_buffer(samples, backend):
    def forward(self, x):
        return x + samples.own_normal(self.noise, (2,))

    model = samples.model(forward, parameters={"gain": array(2)}, generators={"noise": 3})
    block = unigrad.wrap(samples.model(lambda self, x: self.inner(x), layers={"inner": model}))
    assert list(block.random_state) == ["inner.noise"]
    assert backend.rng.is_generator(block.random_state["inner.noise"])
    assert not block.buffers
    assert list(block.state()) == ["inner.gain"]

"""Clause C3: buffers move once where a region reaches a layer in several ways, or far away."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.collecting import collects, leaves
from unigrad_conformance.suite.problems import array, gradients_of, same_bits, to_numpy

pytestmark = pytest.mark.clause("C3")


def normalization(samples):
    return samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)


def after_steps(samples, layer, call):
    """Return state and gradients after two steps, the second backward of each on the same graph."""
    with unigrad.GradientCollector(layer) as collector:
        for seed in (1, 2):
            out = call(samples.tensor(array(5, 3, seed=seed)))
            loss = samples.operations.sum(out * out)
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
    return unigrad.wrap(layer).state() | {f"gradient {name}": value for name, value in gradients_of(collector).items()}


@pytest.mark.needs(Capability.CAPTURES)
def test_a_layer_and_its_checkpoint_in_one_region(samples):
    found = []
    for checkpoint in (lambda call: call, unigrad.checkpoint):
        layer = normalization(samples)
        inner = checkpoint(layer)
        found.append(
            after_steps(samples, layer, checkpoint(lambda x, layer=layer, inner=inner: layer(inner(x)) + inner(x)))
        )
    same_bits(*found)


@pytest.mark.needs(Capability.CAPTURES)
@pytest.mark.parametrize("times", [1, 5, 20])
def test_a_layer_behind_functions_that_call_functions(samples, times):
    def behind(call):
        return lambda x: call(x)

    found = []
    for checkpoint in (lambda call: call, unigrad.checkpoint):
        layer = normalization(samples)
        call = layer
        for _ in range(times):
            call = behind(call)
        found.append(after_steps(samples, layer, checkpoint(call)))
    same_bits(*found)


@pytest.mark.clause("C2")
def test_another_bit_generator_behind_the_global_generator_of_numpy(samples):
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        own = leaves(samples, w=[1, 1])
        run = unigrad.checkpoint(lambda w: w * w * float(np.random.randint(2, 1000)), blocks=unigrad.wrap(own))
        with unigrad.GradientCollector(own) as collector:
            loss = samples.operations.sum(run(own["w"]))
            before = str(np.random.get_state(legacy=False))
            collector.backward(loss)
        assert str(np.random.get_state(legacy=False)) == before
        collects(collector.gradients, w=[to_numpy(loss)] * 2)  # 2 w k, and the loss is k twice
    finally:
        np.random.set_bit_generator(usual)

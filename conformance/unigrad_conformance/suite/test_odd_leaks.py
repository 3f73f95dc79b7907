"""Clause G15: what a step held is gone when the step ends, not when the garbage collector comes by."""

from __future__ import annotations

import gc

import pytest

import unigrad
from unigrad_conformance.suite.problems import array, mlp

pytestmark = pytest.mark.clause("G15")

KINDS = {
    "plain": lambda model: model,
    "checkpoint": unigrad.checkpoint,
    "nested": lambda model: unigrad.checkpoint(unigrad.checkpoint(model)),
    "function": lambda model: unigrad.checkpoint(lambda x: model(x), blocks=model),
    "microbatch": lambda model: unigrad.microbatch(model, size=2),
}


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_input_of_a_step_dies_with_it(samples, kind, retain):
    model = mlp(samples, 3, 4, 2)
    run = KINDS[kind](model)

    def step():
        x = samples.tensor(array(5, 3))
        alive = samples.storage_alive(x)
        with unigrad.GradientCollector(model) as collector:
            loss = samples.operations.sum(run(x))
            collector.backward(loss, retain_graph=retain)
            assert len(collector.gradients) == 4
        return alive

    step()  # what is kept once, such as the names of a model
    gc.collect()
    gc.disable()
    try:
        alive = step()
        assert not alive()
    finally:
        gc.enable()

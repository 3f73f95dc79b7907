"""Random layers draw the same in the forward and the recompute of every part (clause M4)."""

from __future__ import annotations

import random

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.suite.parts import bits_of_parts, loop, single_steps, step
from unigrad_conformance.suite.problems import array, mlp, same_bits, to_numpy

pytestmark = pytest.mark.clause("M4")


def noisy(samples, draw):
    """Return a function ``tanh(x w) * noise`` and its block; the recompute needs the very noise of the forward."""
    ops = samples.operations
    weight = samples.leaf(array(3, seed=20))

    def function(x):
        return ops.tanh(x * weight) * draw(to_numpy(x).shape)

    return function, unigrad.wrap({"weight": weight})


def draws(samples):
    """Return the random sources that every backend has, by name."""
    ops = samples.operations
    return {
        "dropout": lambda shape: ops.dropout(samples.tensor(np.ones(shape, "float32")), 0.5),
        "normal": ops.normal,
        "uniform": ops.uniform,
        "numpy": lambda shape: samples.tensor(np.asarray(np.random.standard_normal(shape), "float32")),
        "python": lambda shape: samples.tensor(np.full(shape, random.random(), "float32")),
    }


@pytest.mark.parametrize("source", ["dropout", "normal", "uniform", "numpy", "python"])
def test_the_gradient_is_that_of_the_numbers_of_the_forward(samples, source):
    draw = draws(samples)[source]
    given = []

    def noted(shape):
        given.append(draw(shape))
        return given[-1]

    function, block = noisy(samples, noted)
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(array(7, 3)), name="x")
        y = unigrad.microbatch(function, 3, blocks=block)(x)
        forward = np.concatenate([to_numpy(noise) for noise in given])
        collector.backward(samples.operations.sum(y))
    assert len(given) == 6, "three parts forward, three in the recompute"
    assert len({noise.tobytes() for noise in map(to_numpy, given[:3])}) == 3, "each part draws its own numbers"
    weight = array(3, seed=20)
    slope = 1 - np.tanh(array(7, 3).astype(float) * weight) ** 2
    # Two products and a tanh: a few roundings of numbers of the size of the noise.
    scale = 32 * np.finfo("float32").eps * np.abs(forward * weight).max()
    np.testing.assert_allclose(to_numpy(collector.input_gradients["x"]), forward * weight * slope, rtol=0, atol=scale)


@pytest.mark.clause("M1")
@pytest.mark.parametrize("source", ["dropout", "normal", "uniform", "numpy", "python"])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_bits_are_those_of_the_loop_from_the_same_seed(samples, guarantee, source, size):
    function, block = noisy(samples, draws(samples)[source])
    inputs = {"x": samples.tensor(array(7, 3))}

    def seeded(call):
        def run(**arguments):
            unigrad.seed(5)
            return call(**arguments)

        return run

    found = step(samples, block, seeded(unigrad.microbatch(function, size, blocks=block)), inputs)
    reference = step(samples, block, seeded(loop(samples, function, size)), inputs)
    assert found.outputs["output"].tobytes() == reference.outputs["output"].tobytes()
    same_bits(found.inputs, reference.inputs)
    if guarantee(Guarantee.BITEXACT_SHARING) == "kept" or size == 7:
        same_bits(found.gradients, reference.gradients)


@pytest.mark.clause("C2")
@pytest.mark.parametrize("source", ["dropout", "normal", "uniform", "numpy", "python"])
def test_the_streams_go_on_as_after_the_loop(samples, source):
    draw = draws(samples)[source]
    function, block = noisy(samples, draw)
    inputs = {"x": samples.tensor(array(7, 3))}
    after = []
    for call in (unigrad.microbatch(function, 3, blocks=block), loop(samples, function, 3)):
        unigrad.seed(6)
        step(samples, block, call, inputs)
        after.append(to_numpy(draw((5,))))
    same_bits({"next": after[0]}, {"next": after[1]})


def test_a_dropout_layer_inside_a_model(samples, guarantee):
    block = unigrad.wrap(mlp(samples, 4, 8, 8, 2, rate=0.4)).train()
    inputs = {"x": samples.tensor(array(7, 4))}

    def seeded(call):
        def run(x):
            unigrad.seed(7)
            return call(x)

        return run

    found = step(samples, block, seeded(unigrad.microbatch(block, 2)), inputs)
    reference = step(samples, block, seeded(lambda x: loop(samples, lambda x: block(x), 2)(x=x)), inputs)
    assert found.outputs["output"].tobytes() == reference.outputs["output"].tobytes()
    same_bits(found.inputs, reference.inputs)
    if guarantee(Guarantee.BITEXACT_SHARING) == "kept":
        same_bits(found.gradients, reference.gradients)


@pytest.mark.needs(Capability.OWN_GENERATORS)
def test_a_generator_of_the_model(samples, guarantee):
    ops = samples.operations

    def forward(self, x):
        return ops.tanh(x * self.weight) * samples.own_normal(self.noise, to_numpy(x).shape)

    def fresh():
        model = samples.model(forward, parameters={"weight": array(3, seed=20)}, generators={"noise": 11})
        return unigrad.wrap(model)

    inputs = {"x": samples.tensor(array(7, 3))}
    first, second, third = fresh(), fresh(), fresh()
    found = step(samples, first, unigrad.microbatch(first, 3), inputs)
    reference = step(samples, second, loop(samples, second, 3), inputs)
    terms = single_steps(samples, third, third, inputs, 3)
    bits_of_parts(found, reference, terms, guarantee(Guarantee.BITEXACT_SHARING))

"""Checkpoint: the recompute draws the numbers of the forward, and every stream goes on as in the plain run."""

from __future__ import annotations

import random

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, same_bits, to_numpy
from unigrad_conformance.suite.regions import draws, random_bits, step

SHAPE = (4, 3)


def _noise(samples, source):
    """Return a function of ``self`` that draws noise of ``SHAPE`` from one source."""
    operations = samples.operations
    return {
        "dropout": lambda self: operations.dropout(samples.tensor(np.ones(SHAPE, "float32")), 0.5),
        "normal": lambda self: operations.normal(SHAPE),
        "uniform": lambda self: operations.uniform(SHAPE),
        "own_normal": lambda self: samples.own_normal(self.own, SHAPE),
        "python": lambda self: samples.tensor(np.full(SHAPE, random.random(), "float32")),
        "numpy": lambda self: samples.tensor(np.random.standard_normal(SHAPE).astype("float32")),
    }[source]


def _noisy(samples, source, seed=5):
    """Return a block without parameters that multiplies its input by noise from one source."""
    noise = _noise(samples, source)
    members = {"generators": {"own": seed}} if source == "own_normal" else {}
    return unigrad.wrap(samples.model(lambda self, x: x * noise(self), **members)).train()


def _own(source):
    return [pytest.mark.needs(Capability.OWN_GENERATORS)] if source == "own_normal" else []


SOURCES = [
    pytest.param(source, id=source, marks=_own(source))
    for source in ("dropout", "normal", "uniform", "own_normal", "python", "numpy")
]


def _gradient_times_input(samples, run, block, between=lambda: None):
    """Return gradient * x and y of a region ``y = x * noise``; equal where both runs drew the same noise."""
    values = np.full(SHAPE, 2, "float32")  # a power of two, so that the products are exact
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(values), name="x")
        y = run(x)
        between()
        collector.backward(samples.operations.sum(y))
    return to_numpy(collector.input_gradients["x"]) * values, to_numpy(y)


@pytest.mark.clause("C1", "C2", "D3")
@pytest.mark.parametrize("source", SOURCES)
def test_recompute_draws_the_numbers_of_the_forward(samples, source):
    block = _noisy(samples, source)
    gradient, y = _gradient_times_input(samples, unigrad.checkpoint(block), block)
    assert gradient.tobytes() == y.tobytes()
    assert len(np.unique(y)) > 1 or source == "python"


@pytest.mark.clause("C1", "C2")
@pytest.mark.parametrize("source", SOURCES)
def test_draws_between_forward_and_backward_do_not_reach_the_recompute(samples, source):
    block = _noisy(samples, source)
    noise = _noise(samples, source)
    gradient, y = _gradient_times_input(
        samples, unigrad.checkpoint(block), block, between=lambda: [noise(block.native) for _ in range(3)]
    )
    assert gradient.tobytes() == y.tobytes()


@pytest.mark.clause("C2")
@pytest.mark.parametrize("source", SOURCES)
def test_streams_after_the_step_are_those_of_the_plain_run(samples, source):
    plain, rerun = _noisy(samples, source), _noisy(samples, source)
    x = array(*SHAPE)
    same_bits(step(samples, plain, plain, x), step(samples, rerun, unigrad.checkpoint(rerun), x))
    if source == "own_normal":
        same_bits(
            {"own": to_numpy(_noise(samples, source)(plain.native))},
            {"own": to_numpy(_noise(samples, source)(rerun.native))},
        )


@pytest.mark.clause("C2")
@pytest.mark.parametrize("source", SOURCES)
def test_streams_are_those_of_the_plain_run_also_after_draws_in_between(samples, source):
    """The recompute ends where its forward ended, but the stream has gone on since."""
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        unigrad.seed(3)
        block, noise = _noisy(samples, source), _noise(samples, source)
        _gradient_times_input(samples, checkpoint(block), block, between=lambda: noise(block.native))  # noqa: B023
        found.append({"next": to_numpy(noise(block.native)), **draws(samples)})
    same_bits(*found)


@pytest.mark.clause("C2")
def test_streams_are_those_of_the_plain_run_after_several_backwards(samples):
    def run(checkpoint):
        block = _noisy(samples, "dropout")
        return step(samples, block, checkpoint(block), array(*SHAPE), backwards=3)

    same_bits(run(lambda block: block), run(unigrad.checkpoint))


@pytest.mark.clause("C2")
def test_streams_are_those_of_the_plain_run_without_a_backward(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _noisy(samples, "dropout")
        unigrad.seed(3)
        with unigrad.GradientCollector(block, parameters=False) as collector:
            checkpoint(block)(collector.watch(samples.tensor(array(*SHAPE)), name="x"))
            found.append(draws(samples))
    same_bits(*found)


@pytest.mark.clause("C2", "C1")
def test_each_call_of_a_region_draws_anew(samples):
    block = _noisy(samples, "dropout")
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block, parameters=False) as collector:
        values = np.full(SHAPE, 2, "float32")
        first, second = (collector.watch(samples.tensor(values), name=name) for name in ("first", "second"))
        y, z = run(first), run(second)
        collector.backward(samples.operations.sum(y) + samples.operations.sum(z))
    assert to_numpy(y).tobytes() != to_numpy(z).tobytes()
    assert (to_numpy(collector.input_gradients["first"]) * values).tobytes() == to_numpy(y).tobytes()
    assert (to_numpy(collector.input_gradients["second"]) * values).tobytes() == to_numpy(z).tobytes()


@pytest.mark.clause("C2")
def test_backward_leaves_every_stream_where_it_was(samples, backend):
    block = _noisy(samples, "dropout")
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(*SHAPE)), name="x")
        loss = samples.operations.sum(unigrad.checkpoint(block)(x))
        before = random_bits(backend)
        collector.backward(loss)
        assert random_bits(backend) == before


@pytest.mark.clause("C2")
def test_seeding_between_forward_and_backward_does_not_reach_the_recompute(samples):
    block = _noisy(samples, "dropout")
    gradient, y = _gradient_times_input(samples, unigrad.checkpoint(block), block, between=lambda: unigrad.seed(99))
    assert gradient.tobytes() == y.tobytes()


def _with_generator(samples, draw):
    return unigrad.wrap(samples.model(lambda self, x: x * draw())).train()


@pytest.mark.clause("C2")
@pytest.mark.needs(Capability.OWN_GENERATORS)
def test_registered_native_generator_is_kept(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        generator = samples.generator(7)
        unigrad.register_generator(generator)
        block = _with_generator(samples, lambda: samples.own_normal(generator, SHAPE))  # noqa: B023  # used in this turn
        gradient, y = _gradient_times_input(samples, checkpoint(block), block)
        assert gradient.tobytes() == y.tobytes()
        found.append({"y": y, "next": to_numpy(samples.own_normal(generator, SHAPE))})
    same_bits(*found)


@pytest.mark.clause("C2")
def test_registered_numpy_generator_is_kept(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        generator = np.random.default_rng(7)
        unigrad.register_generator(generator)
        block = _with_generator(
            samples,
            lambda: samples.tensor(generator.standard_normal(SHAPE).astype("float32")),  # noqa: B023  # used in this turn
        )
        gradient, y = _gradient_times_input(samples, checkpoint(block), block)
        assert gradient.tobytes() == y.tobytes()
        found.append({"y": y, "next": generator.standard_normal(3)})
    same_bits(*found)


@pytest.mark.clause("C8", "C2")
def test_unregistered_generator_is_noticed(samples):
    generator = np.random.default_rng(7)
    block = _with_generator(samples, lambda: samples.tensor(generator.standard_normal(SHAPE).astype("float32")))
    with pytest.raises(unigrad.RecomputeMismatchError, match="generator"):
        _gradient_times_input(samples, unigrad.checkpoint(block), block)


@pytest.mark.clause("C2")
def test_random_recompute_in_a_later_mode_is_that_of_the_forward(samples, backend):
    """The mode at the forward counts, not the one at the backward, which stays."""
    block = unigrad.wrap(samples.layer("dropout", rate=0.5)).train()
    gradient, y = _gradient_times_input(samples, unigrad.checkpoint(block), block, between=block.eval)
    assert gradient.tobytes() == y.tobytes()
    assert not block.training
    assert not backend.block.training(block.native)


@pytest.mark.clause("C2", "C5")
def test_mode_chosen_through_the_block_is_that_of_the_forward(samples):
    """A function that calls the block: the recompute runs in the mode that the block had, which then stays as chosen."""
    block = unigrad.wrap(samples.layer("dropout", rate=0.5)).train()
    run = unigrad.checkpoint(lambda x: block(x) * 1.0, blocks=[block])
    gradient, y = _gradient_times_input(samples, run, block, between=block.eval)
    assert gradient.tobytes() == y.tobytes()
    assert not block.training


@pytest.mark.clause("C2")
@pytest.mark.needs(Capability.OWN_GENERATORS)
def test_generator_of_a_layer_deep_inside_is_kept(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        inner = _noisy(samples, "own_normal")
        outer = samples.layer("sequential", layers=[samples.layer("sequential", layers=[inner.native])])
        block = unigrad.wrap(outer)
        gradient, y = _gradient_times_input(samples, checkpoint(block), block)
        assert gradient.tobytes() == y.tobytes()
        found.append({"y": y, "next": to_numpy(samples.own_normal(inner.native.own, SHAPE))})
    same_bits(*found)

"""Microbatch equals the loop over parts bit for bit, and the whole batch up to rounding (clause M1)."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import unigrad
from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.observations import EPSILON
from unigrad_conformance.suite.parts import bits_of_parts, loop, single_steps, step, weighed
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits, to_numpy

pytestmark = pytest.mark.clause("M1")


def neck(samples, dtype="float32"):
    """Return a model of one keyword input, its block and a batch of seven."""
    layers = {"first": dense(samples, 4, 6, seed=1, dtype=dtype), "second": dense(samples, 6, 3, seed=2, dtype=dtype)}

    def forward(self, x):
        return self.second(samples.operations.tanh(self.first(x)))

    block = unigrad.wrap(samples.model(forward, layers=layers))
    return block, samples.tensor(array(7, 4, seed=3, dtype=dtype))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 100])
@pytest.mark.dtypes("float32", "float64")
def test_the_bits_of_the_loop_over_parts(samples, guarantee, record, dtype, size):
    block, x = neck(samples, dtype)
    found = step(samples, block, unigrad.microbatch(block, size), {"x": x})
    reference = step(samples, block, loop(samples, block, size), {"x": x})
    parts = single_steps(samples, block, block, {"x": x}, size)
    bits_of_parts(found, reference, parts, guarantee(Guarantee.BITEXACT_SHARING))
    # The longest sum behind a value: 7 samples, and 4, 6 and 3 elements in the matrix products.
    reason = "sums over samples and widths, one after the other"
    record("outputs", found.outputs["output"], terms=10, reason=reason)
    record("gradients", found.gradients, terms=20, reason=reason)
    record("inputs", found.inputs, terms=20, reason=reason)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_whole_batch_up_to_rounding(samples, dtype, size):
    ops = samples.operations
    weight = samples.leaf(array(4, 3, seed=5), dtype)
    block = unigrad.wrap({"weight": weight})

    def function(x):
        return ops.matmul(x, weight)

    inputs = {"x": samples.tensor(array(7, 4, seed=6), dtype)}
    whole = step(samples, block, function, inputs)
    found = step(samples, block, unigrad.microbatch(function, size, blocks=block), inputs)
    terms = single_steps(samples, block, function, inputs, 1)
    eps = EPSILON[dtype]
    # Each way sums products of 4 elements forward and at most 7 samples backward, in some order, and rounds the results of tanh
    # and of its derivative: no more than 4 + 7 + 5 roundings relative to the sum of the sizes of the terms.
    bound = 2 * (4 + 7 + 5) * eps
    sizes = np.abs(to_numpy(inputs["x"]).astype(np.float64)) @ np.abs(to_numpy(weight).astype(np.float64))
    assert np.all(np.abs(found.outputs["output"].astype(np.float64) - whole.outputs["output"]) <= bound * sizes)
    for group in ("gradients", "inputs"):
        assert sorted(getattr(found, group)) == sorted(getattr(whole, group))
    spread = np.sum([np.abs(term.gradients["weight"].astype(np.float64)) for term in terms], 0)
    difference = np.abs(found.gradients["weight"].astype(np.float64) - whole.gradients["weight"])
    # The derivative of tanh turns an absolute error of its argument into one of the same order, relative to the largest argument.
    assert np.all(difference <= bound * spread.max() * max(1.0, sizes.max()))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=st.integers(1, 9), size=st.integers(1, 11), axis=st.integers(0, 1))
def test_any_batch_in_parts_of_any_size(samples, guarantee, batch, size, axis):
    ops = samples.operations
    weight = samples.leaf(array(3, 3, seed=7))
    block = unigrad.wrap({"weight": weight})

    def function(x):
        return ops.tanh(ops.matmul(x, weight)) if axis == 0 else ops.tanh(ops.matmul(weight, x))

    inputs = {"x": samples.tensor(array(*((batch, 3) if axis == 0 else (3, batch)), seed=8))}

    def loss(y):
        return weighed(samples, y, axis=axis)

    split = unigrad.microbatch(function, size, blocks=block, batch_axis=axis)
    found = step(samples, block, split, inputs, loss=loss)
    reference = step(samples, block, loop(samples, function, size, axis=axis), inputs, loss=loss)
    terms = single_steps(samples, block, function, inputs, size, axis=axis)
    bits_of_parts(found, reference, terms, guarantee(Guarantee.BITEXACT_SHARING))


def test_a_part_in_the_middle_of_a_model(samples, guarantee):
    trunk, middle, head = (dense(samples, *widths, seed=seed) for seed, widths in enumerate([(3, 4), (4, 5), (5, 2)]))

    def forward(self, x, split):
        h = self.trunk(x)
        call = unigrad.microbatch(self.neck, 2) if split == "microbatch" else self.neck
        h = loop(samples, lambda h: call(h), 2)(h=h) if split == "loop" else call(h)
        return self.head(h)

    block = unigrad.wrap(samples.model(forward, layers={"trunk": trunk, "neck": middle, "head": head}))
    inputs = {"x": samples.tensor(array(5, 3, seed=4))}
    found = step(samples, block, block, inputs, others={"split": "microbatch"})
    reference = step(samples, block, block, inputs, others={"split": "loop"})
    assert sorted(found.gradients) == sorted(block.parameters)
    if guarantee(Guarantee.BITEXACT_SHARING) == "kept":
        same_bits(found.all(), reference.all())
    else:
        # The neck's parameters are summed over three parts in another order: two more roundings a term.
        for name, value in reference.all().items():
            np.testing.assert_allclose(
                found.all()[name], value, rtol=0, atol=8 * EPSILON["float32"] * np.abs(value).max()
            )


def test_a_second_backward_of_a_kept_graph_repeats_the_first(samples):
    block, x = neck(samples)
    call = unigrad.microbatch(block, 3)
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(call(x))
        collector.backward(loss, retain_graph=True)
        first = gradients_of(collector)
        collector.backward(loss)
        second = gradients_of(collector)
    same_bits(first, second)


def test_a_released_graph_is_released_in_every_part(samples):
    block, x = neck(samples)
    call = unigrad.microbatch(block, 3)
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(call(x))
        collector.backward(loss)
        kept = gradients_of(collector)
        with pytest.raises(unigrad.GraphReleasedError):
            collector.backward(loss)
        same_bits(gradients_of(collector), kept)


def test_unused_parameters_stay_absent(samples):
    used, unused = dense(samples, 3, 2, seed=1), dense(samples, 3, 2, seed=2)

    def forward(self, x):
        return self.used(x), self.other(x)

    block = unigrad.wrap(samples.model(forward, layers={"used": used, "other": unused}))
    call = unigrad.microbatch(block, 2)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        kept, _ = call(samples.tensor(array(5, 3)))
        collector.backward(samples.operations.sum(kept))
    assert sorted(collector.gradients) == ["used.bias", "used.weight"]
    assert sorted(collector.usage.disconnected) == ["other.bias", "other.weight"]


def test_frozen_parameters_get_no_gradient_and_inputs_do(samples):
    block, x = neck(samples)
    block.freeze("*")
    found = step(samples, block, unigrad.microbatch(block, 3), {"x": x})
    reference = step(samples, block, loop(samples, block, 3), {"x": x})
    assert not found.gradients
    same_bits(found.inputs, reference.inputs)


def test_nothing_is_recorded_without_recording(samples, backend):
    block, x = neck(samples)
    with samples.no_grad():
        split, plain = unigrad.microbatch(block, 3)(x), loop(samples, block, 3)(x=x)
    same_bits({"y": to_numpy(split)}, {"y": to_numpy(plain)})
    assert not backend.arrays.requires_gradient(split)


@pytest.mark.clause("C13")
def test_switched_off_it_is_the_plain_call(samples):
    block, x = neck(samples)
    calls = []

    def function(x):
        calls.append(to_numpy(x).shape)
        return block(x)

    split = unigrad.microbatch(function, 3, blocks=block)
    split.enabled = False
    found = step(samples, block, split, {"x": x})
    assert calls == [(7, 4)]
    same_bits(found.all(), step(samples, block, block, {"x": x}).all())


@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_a_checkpoint_inside_a_part(samples, guarantee):
    inner = mlp(samples, 4, 5, 4, seed=1)
    outer = dense(samples, 4, 2, seed=3)

    def forward(self, x, rerun):
        call = unigrad.checkpoint(self.inner) if rerun else self.inner
        return self.outer(call(x))

    block = unigrad.wrap(samples.model(forward, layers={"inner": inner, "outer": outer}))
    inputs = {"x": samples.tensor(array(5, 4, seed=2))}
    found = step(samples, block, unigrad.microbatch(block, 2), inputs, others={"rerun": True})
    reference = step(samples, block, loop(samples, lambda x: block(x, rerun=False), 2), inputs)
    terms = single_steps(samples, block, lambda x: block(x, rerun=False), inputs, 2)
    bits_of_parts(found, reference, terms, guarantee(Guarantee.BITEXACT_SHARING))

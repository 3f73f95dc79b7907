"""Microbatch of a native module is a native module, of a block a block, of a function a function (clause M7)."""

from __future__ import annotations

import copy
import inspect

import pytest

import unigrad
from unigrad.protocols import Guarantee
from unigrad_conformance.observations import EPSILON
from unigrad_conformance.suite.parts import loop, step
from unigrad_conformance.suite.problems import array, dense, mlp, same_bits, to_numpy

pytestmark = pytest.mark.clause("M7")


def test_each_kind_stays_its_kind(samples, backend):
    native = dense(samples, 3, 2)
    block = unigrad.wrap(native)
    assert backend.block.is_model(unigrad.microbatch(native, 2))
    assert isinstance(unigrad.microbatch(native, 2), type(native))
    assert isinstance(unigrad.microbatch(block, 2), unigrad.Block)
    split = unigrad.microbatch(lambda x: block(x), 2, blocks=block)
    assert callable(split)
    assert not backend.block.is_model(split)
    assert not isinstance(split, unigrad.Block)


def test_a_function_keeps_its_name_and_signature(samples):
    def halves(x, factor=2.0):
        """Say something."""
        return x * factor

    split = unigrad.microbatch(halves, 2, blocks=dense(samples, 3, 2))
    assert (split.__name__, split.__doc__) == ("halves", "Say something.")
    assert inspect.signature(split) == inspect.signature(halves)


@pytest.mark.clause("M1")
def test_inside_the_framework_s_own_container(samples, guarantee, record):
    def build(split):
        middle = dense(samples, 6, 12, seed=2)
        return samples.layer(
            "sequential",
            layers=[
                dense(samples, 3, 6, seed=1),
                unigrad.microbatch(middle, 16) if split else middle,
                dense(samples, 12, 1, seed=3),
            ],
        )

    plain, mixed = unigrad.wrap(build(False)), unigrad.wrap(build(True))
    assert list(mixed.parameters) == list(plain.parameters)
    assert list(mixed.parameters) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    x = samples.tensor(array(512, 3, seed=4))
    losses = {}
    gradients = {}
    for name, block in (("plain", plain), ("mixed", mixed)):
        with unigrad.GradientCollector(block) as collector:
            loss = samples.operations.mean(samples.operations.tanh(block(x)))
            collector.backward(loss)
        losses[name] = to_numpy(loss)
        gradients[name] = {key: to_numpy(value) for key, value in collector.gradients.items()}
    eps = EPSILON["float32"]
    # A mean of 512 values of size up to 1, whose arguments are sums of 3, 6 and 12 products: 512 + 21 roundings at most.
    assert abs(float(losses["mixed"]) - float(losses["plain"])) <= 4 * 533 * eps
    for name, value in gradients["plain"].items():
        # The same sums, weighted by activations of size up to 10.
        assert abs(gradients["mixed"][name] - value).max() <= 4 * 533 * eps * 10
    record("loss", losses["mixed"], terms=533, scale=1.0, reason="a mean of 512 values after sums of 3, 6 and 12")
    record("gradients", gradients["mixed"], terms=533, scale=1.0, reason="means of 512 products after those sums")


def test_names_modes_and_state_are_those_of_the_plain_module(samples):
    native = mlp(samples, 3, 4, 2, rate=0.5)
    plain, split = unigrad.wrap(native), unigrad.wrap(unigrad.microbatch(native, 2))
    assert list(split.parameters) == list(plain.parameters)
    for name, value in plain.parameters.items():
        assert split.parameters[name] is value
    assert split.roles == plain.roles
    same_bits(split.state(), plain.state())
    for mode in (True, False):
        (split.train if mode else split.eval)()
        assert split.training is mode


def test_a_block_runs_in_the_mode_of_its_block(samples):
    block = unigrad.wrap(mlp(samples, 3, 4, 2, rate=0.5))
    x = samples.tensor(array(5, 3))
    split = unigrad.microbatch(block, 2)
    block.eval()
    same_bits({"y": to_numpy(split(x))}, {"y": to_numpy(loop(samples, lambda x: block(x), 2)(x=x))})
    block.train()
    unigrad.seed(1)
    first = to_numpy(split(x))
    unigrad.seed(2)
    assert to_numpy(split(x)).tobytes() != first.tobytes()


def test_the_plain_module_and_its_microbatch_share_parameters(samples, guarantee):
    native = dense(samples, 3, 2)
    block = unigrad.wrap(native)
    split = unigrad.microbatch(native, 2)
    inputs = {"x": samples.tensor(array(5, 3))}
    found = step(samples, block, lambda x: split(x), inputs)
    reference = step(samples, block, lambda x: loop(samples, lambda x: block(x), 2)(x=x), inputs)
    assert sorted(found.gradients) == ["bias", "weight"]
    if guarantee(Guarantee.BITEXACT_SHARING) == "kept":
        same_bits(found.all(), reference.all())


def test_a_deep_copy_keeps_the_parts_and_shares_nothing(samples):
    calls = []

    def forward(self, x):
        calls.append(to_numpy(x).shape)
        return self.layer(x)

    native = samples.model(forward, layers={"layer": dense(samples, 3, 2)})
    split = unigrad.microbatch(native, 2)
    twin = unigrad.wrap(copy.deepcopy(split))
    original = unigrad.wrap(native)
    x = samples.tensor(array(5, 3))
    same_bits({"y": to_numpy(twin(x))}, {"y": to_numpy(loop(samples, lambda x: original(x), 2)(x=x))})
    assert calls[:3] == [(2, 3), (2, 3), (1, 3)]
    before = original.state()
    samples.change(next(iter(twin.parameters.values())), array(2, 3, seed=5))
    same_bits(original.state(), before)
    with unigrad.GradientCollector(twin) as collector:
        collector.backward(samples.operations.sum(twin(x)))
    assert sorted(collector.gradients) == sorted(twin.parameters)


def test_a_module_switched_off_is_the_plain_call(samples):
    calls = []

    def forward(self, x):
        calls.append(to_numpy(x).shape)
        return self.layer(x)

    split = unigrad.microbatch(samples.model(forward, layers={"layer": dense(samples, 3, 2)}), 2)
    split.enabled = False
    split(samples.tensor(array(5, 3)))
    assert calls == [(5, 3)]


def test_blocks_are_for_functions(samples):
    native = dense(samples, 3, 2)
    for target in (native, unigrad.wrap(native)):
        with pytest.raises(unigrad.ArgumentError, match="blocks="):
            unigrad.microbatch(target, 2, blocks=native)

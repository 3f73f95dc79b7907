"""R3: parameters without a gradient are told once for each new set of names, at the right time."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, UnusedParameterError, UnusedParameterWarning
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import branches, state_bits, vector
from unigrad_conformance.suite.problems import array, dense

pytestmark = pytest.mark.clause("R3")


class Told:
    """Collects the messages of the warnings inside a ``with``."""

    def __enter__(self):
        self._catch = warnings.catch_warnings(record=True)
        self._found = self._catch.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, *details):
        self._catch.__exit__(*details)

    @property
    def messages(self):
        """Texts so far."""
        assert all(issubclass(found.category, UnusedParameterWarning) for found in self._found)
        return [str(found.message) for found in self._found]


def loss_of(samples, block, *use):
    return sum(samples.operations.sum(out) for out in block(samples.tensor(array(2, 3)), use=use)) * 1.0


def test_unused_parameters_are_told_at_leaving_by_name_and_reason(samples):
    block = unigrad.wrap(branches(samples))
    with Told() as told, unigrad.GradientCollector(block) as collector:
        left, _ = block(samples.tensor(array(2, 3)), use=("left", "right"))
        collector.backward(samples.operations.sum(left))
        assert told.messages == []
    (message,) = told.messages
    assert "right.weight, right.bias (used, but no loss depends on them)" in message
    assert "left" not in message
    assert "encoder" not in message


def test_never_used_parameters_have_their_own_reason(samples):
    block = unigrad.wrap(branches(samples))
    with (
        pytest.warns(UnusedParameterWarning, match=r"right\.weight, right\.bias \(never used in a recorded forward\)"),
        unigrad.GradientCollector(block) as collector,
    ):
        collector.backward(loss_of(samples, block, "left"))


@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_pending_layers_are_told_with_their_reason(samples):
    layers = {"used": dense(samples, 3, 2), "late": samples.layer("lazy_dense", outputs=2, bias=True)}
    block = unigrad.wrap(samples.model(lambda self, x: self.used(x), layers=layers))
    with (
        pytest.warns(UnusedParameterWarning, match=r"late \(layers never called"),
        unigrad.GradientCollector(block) as collector,
    ):
        collector.backward(samples.operations.sum(block(samples.tensor(array(2, 3)))))


def test_a_second_head_is_not_reported_falsely(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    with Told() as told, unigrad.GradientCollector(block) as collector:
        left, right = block(samples.tensor(array(2, 3)), use=("left", "right"))
        collector.backward(ops.sum(left), retain_graph=True)
        collector.backward(ops.sum(right))
    assert told.messages == []


def test_zero_tells(samples):
    block = unigrad.wrap(branches(samples))
    with Told() as told, unigrad.GradientCollector(block) as collector:
        collector.backward(loss_of(samples, block, "left"))
        assert len(told.messages) == 0
        collector.zero()
        assert len(told.messages) == 1
        collector.backward(loss_of(samples, block, "left", "right"))
    assert len(told.messages) == 1


def test_a_step_tells_before_leaving_does(samples):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1))
    with Told() as told, unigrad.GradientCollector(block) as collector:
        collector.backward(loss_of(samples, block, "left"))
        collector.apply(optimizer)
        assert len(told.messages) == 1
    assert len(told.messages) == 1


def test_a_collector_for_each_step_tells_once(samples):
    model = branches(samples)
    with Told() as told:
        for _ in range(4):
            block = unigrad.wrap(model)
            with unigrad.GradientCollector(model) as collector:
                collector.backward(loss_of(samples, block, "left"))
            del block, collector
            gc.collect()
    assert len(told.messages) == 1


def test_a_new_set_is_told_and_an_old_one_is_not(samples):
    block = unigrad.wrap(branches(samples))
    counts = []
    with Told() as told:
        for use in (("left",), ("right",), ("left",), ("left", "right"), ("right",)):
            with unigrad.GradientCollector(block) as collector:
                collector.backward(loss_of(samples, block, *use))
            counts.append(len(told.messages))
    assert counts == [1, 2, 2, 2, 2]
    assert "right.weight" in told.messages[0]
    assert "left.weight" in told.messages[1]


def test_another_model_is_told_by_itself(samples):
    with Told() as told:
        for _ in range(2):
            block = unigrad.wrap(branches(samples))
            with unigrad.GradientCollector(block) as collector:
                collector.backward(loss_of(samples, block, "left"))
    assert len(told.messages) == 2


def test_leaving_by_an_exception_tells_nothing_and_keeps_it(samples):
    block = unigrad.wrap(branches(samples))

    def fail():
        with unigrad.GradientCollector(block, on_unused="error") as collector:
            collector.backward(loss_of(samples, block, "left"))
            raise ZeroDivisionError

    with Told() as told, pytest.raises(ZeroDivisionError):
        fail()
    assert told.messages == []


def test_an_error_is_raised_at_leaving(samples):
    block = unigrad.wrap(branches(samples))
    with (
        pytest.raises(UnusedParameterError, match=r"right\.weight, right\.bias"),
        unigrad.GradientCollector(block, on_unused="error") as collector,
    ):
        collector.backward(loss_of(samples, block, "left"))
    assert set(collector.gradients) == {"encoder.weight", "encoder.bias", "left.weight", "left.bias"}
    with unigrad.GradientCollector(block, on_unused="error") as collector:
        collector.backward(loss_of(samples, block, "left", "right"))


def test_an_error_at_the_step_moves_nothing(samples):
    block = unigrad.wrap(branches(samples))
    before = state_bits(block)
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1))
    with unigrad.GradientCollector(block, on_unused="error") as collector:
        collector.backward(loss_of(samples, block, "left"))
        with pytest.raises(UnusedParameterError):
            collector.apply(optimizer)
        assert state_bits(block) == before
        assert optimizer.with_state == ()


def test_ignoring_tells_nothing(samples):
    block = unigrad.wrap(branches(samples))
    with Told() as told, unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(loss_of(samples, block, "left"))
        collector.zero()
        collector.backward(loss_of(samples, block, "right"))
    assert told.messages == []


def test_collecting_inputs_only_tells_nothing(samples):
    block = unigrad.wrap(branches(samples))
    with Told() as told, unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(array(2, 3)), "x")
        collector.backward(samples.operations.sum(block(x)[0]))
    assert told.messages == []


def test_frozen_parameters_are_not_told(samples):
    block = unigrad.wrap(branches(samples)).freeze("right")
    with Told() as told, unigrad.GradientCollector(block) as collector:
        collector.backward(loss_of(samples, block, "left"))
    assert told.messages == []


@pytest.mark.parametrize(
    "expected", ["right", "right.*", ["right.weight", "*.bias"]], ids=["layer", "below", "several"]
)
def test_what_is_expected_to_be_unused_is_not_told(samples, expected):
    block = unigrad.wrap(vector_heads(samples))
    with Told() as told, unigrad.GradientCollector(block, expect_unused=expected) as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(array(3, 3)))))
    assert told.messages == []


def vector_heads(samples):
    """Return a native model whose layer ``left`` has no bias, so that no bias is used."""
    layers = {"left": dense(samples, 3, 2, bias=False), "right": dense(samples, 3, 2)}
    return samples.model(lambda self, x: self.left(x), layers=layers)


def test_what_is_expected_to_be_unused_and_is_used_is_told(samples):
    block = unigrad.wrap(branches(samples))
    with (
        pytest.warns(UnusedParameterWarning, match=r"left\.weight, left\.bias \(expected to be unused, but"),
        unigrad.GradientCollector(block, expect_unused=["left", "right"]) as collector,
    ):
        collector.backward(loss_of(samples, block, "left"))
    with (
        pytest.raises(UnusedParameterError, match=r"left\.weight"),
        unigrad.GradientCollector(block, on_unused="error", expect_unused=["left", "right"]) as collector,
    ):
        collector.backward(loss_of(samples, block, "left"))


def test_unknown_policies_are_errors(samples):
    with pytest.raises(ArgumentError, match="'warn', 'error', 'ignore'"):
        unigrad.GradientCollector(branches(samples), on_unused="raise")
    wrong: Any
    for wrong in (3, None, ["left", 3], [["left"]]):
        with pytest.raises(ArgumentTypeError, match="expect_unused"):
            unigrad.GradientCollector(branches(samples), expect_unused=wrong)


def test_expecting_names_that_do_not_exist_is_an_error(samples):
    with pytest.raises(ArgumentError, match=r"'rigth\.\*' of expect_unused fits nothing.*right"):
        unigrad.GradientCollector(branches(samples), expect_unused=["left", "rigth.*"])


@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_names_of_layers_not_built_yet_can_be_expected(samples):
    layers = {"used": dense(samples, 3, 2), "late": samples.layer("lazy_dense", outputs=2, bias=True)}
    block = unigrad.wrap(samples.model(lambda self, x: self.used(x), layers=layers))
    with Told() as told, unigrad.GradientCollector(block, expect_unused=["late", "late.weight"]) as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(array(2, 3)))))
    assert told.messages == []


def test_a_loss_that_reaches_nothing_of_the_block_is_told(samples):
    block = unigrad.wrap(vector(samples, lambda self, x: x, a=[1.0], b=[2.0]))
    ops = samples.operations
    with (
        pytest.warns(UnusedParameterWarning, match=r"a, b \(never used"),
        unigrad.GradientCollector(block) as collector,
    ):
        collector.backward(ops.sum(block(samples.leaf(array(2)))))
    assert not collector.gradients


def test_a_joined_block_tells_once_for_its_parts(samples):
    used, idle = dense(samples, 3, 2), dense(samples, 3, 2)
    with Told() as told:
        for _ in range(3):
            with unigrad.GradientCollector(unigrad.join(used=used, idle=idle)) as collector:
                collector.backward(samples.operations.sum(unigrad.wrap(used)(samples.tensor(array(2, 3)))))
    (message,) = told.messages
    assert "idle.weight, idle.bias" in message

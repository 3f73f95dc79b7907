"""G18: a loop that steps the framework's own optimizer after write_back is the loop that applies, step for step."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentTypeError
from unigrad_conformance.suite.block_problems import branches, collect
from unigrad_conformance.suite.collecting import overwrite
from unigrad_conformance.suite.optimizer_problems import OPTIMIZERS, values_of
from unigrad_conformance.suite.problems import array, dense, same_bits, to_numpy

pytestmark = pytest.mark.clause("G18")


def native_slots(backend, block):
    return {name: backend.tape.native_gradient(parameter) for name, parameter in block.parameters.items()}


def bits(slots):
    return {name: None if value is None else to_numpy(value).tobytes() for name, value in slots.items()}


def heads(samples, block, *use):
    ops = samples.operations
    return sum(ops.sum(out * out) for out in block(samples.tensor(array(2, 3)), use=use)) * 1.0


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("accumulate", ["write", "add"])
def test_write_back_and_a_native_step_are_apply(samples, backend, kind, accumulate):
    """Parameters that get no gradient in a step stay where they are in both loops."""
    applied, native = unigrad.wrap(branches(samples)), unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(applied, OPTIMIZERS[kind].factory(samples))
    own = backend.optimizer.create(OPTIMIZERS[kind].factory(samples), dict(native.parameters))
    for use in (("left",), ("left", "right"), ("right",), ("left",)):
        for block in (applied, native):
            with unigrad.GradientCollector(block, accumulate, on_unused="ignore") as collector:
                for _ in range(2):
                    collector.backward(heads(samples, block, *use))
            if block is applied:
                collector.apply(optimizer)
                continue
            collector.write_back()
            slots = native_slots(backend, block)
            assert {name for name, gradient in slots.items() if gradient is None} == {
                name for name in block.parameters if name.partition(".")[0] not in ("encoder", *use)
            }
            backend.optimizer.step(own, [(block.parameters[name], gradient) for name, gradient in slots.items()])
    same_bits(values_of(native), values_of(applied))


def test_write_back_twice_is_write_back_once(samples, backend):
    """It puts, and adds to nothing: also when what stood there has been changed in between, as unscaling does."""
    block = unigrad.wrap(branches(samples))
    with unigrad.GradientCollector(block, "add", on_unused="ignore") as collector:
        collector.backward(heads(samples, block, "left"))
        collector.backward(heads(samples, block, "left"))
    expected = {name: to_numpy(value) for name, value in collector.gradients.items()}
    for _ in range(2):
        collector.write_back()
        slots = {name: value for name, value in native_slots(backend, block).items() if value is not None}
        same_bits({name: to_numpy(value) for name, value in slots.items()}, expected)
        for value in slots.values():
            overwrite(backend, value, 0.0)
    same_bits({name: to_numpy(value) for name, value in collector.gradients.items()}, expected)


def test_gradients_written_back_share_no_memory(samples, backend):
    """Two parameters that are only added have equal gradients, which a tool that changes them in place must find apart."""
    block = unigrad.wrap({"a": samples.leaf(np.array([1.0, 2.0])), "b": samples.leaf(np.array([3.0, 4.0]))})
    ops = samples.operations
    a, b = block.parameters["a"], block.parameters["b"]
    collect(block, lambda: ops.sum((a + b) * (a + b))).write_back()
    first = backend.tape.native_gradient(a)
    overwrite(backend, first, 0.0)
    assert to_numpy(backend.tape.native_gradient(b)).tolist() == [8, 12]


def test_a_frozen_parameter_has_nothing_written_back(samples, backend):
    block = unigrad.wrap(branches(samples))
    collect(block, lambda: heads(samples, block, "left")).write_back()
    block.freeze("encoder")
    collect(block, lambda: heads(samples, block, "left")).write_back()
    absent = {name for name, value in native_slots(backend, block).items() if value is None}
    assert absent == {"encoder.weight", "encoder.bias", "right.weight", "right.bias"}


def test_a_failing_write_back_changes_nothing(samples, backend, monkeypatch):
    block = unigrad.wrap(branches(samples))
    collect(block, lambda: heads(samples, block, "right")).write_back()
    before = bits(native_slots(backend, block))
    collector = collect(block, lambda: heads(samples, block, "left"))
    put = backend.tape.set_native_gradient
    refused = block.parameters["left.bias"]

    def fail(parameter, gradient):
        if parameter is refused and gradient is not None:
            raise ArgumentTypeError("converted")
        put(parameter, gradient)

    with monkeypatch.context() as patch:
        patch.setattr(backend.tape, "set_native_gradient", fail)
        with pytest.raises(ArgumentTypeError, match="converted"):
            collector.write_back()
    assert bits(native_slots(backend, block)) == before


def test_clipping_by_the_collector_is_clipping_by_the_norm(samples, record):
    block = unigrad.wrap(dense(samples, 3, 4))
    ops = samples.operations
    x = samples.tensor(array(5, 3))
    collector = collect(block, lambda: ops.sum(block(x) * block(x)))
    plain = {name: to_numpy(value).astype("float64") for name, value in collector.gradients.items()}
    norm = np.sqrt(sum((value**2).sum() for value in plain.values()))
    assert norm > 1
    collector.clip_by_global_norm(1.0)
    for name, value in plain.items():
        # a norm of 16 squares, a quotient and a product, relative to elements below the maximum norm of 1
        np.testing.assert_allclose(
            to_numpy(collector.gradients[name]), value / norm, rtol=0, atol=float(20 * np.finfo("float32").eps)
        )
        record(name, collector.gradients[name], terms=20, reason="a norm of 16 squares, a quotient and a product")


def test_a_schedule_is_made_with_the_optimizer_and_before_its_first_step(samples):
    block = unigrad.wrap(branches(samples))
    seen = []

    def schedule(native):
        seen.append((native, {name: value.tobytes() for name, value in values_of(block).items()}))
        return ["the schedule"]

    optimizer = unigrad.Optimizer(block, samples.sgd(0.1), schedule=schedule)
    before = {name: value.tobytes() for name, value in values_of(block).items()}
    assert optimizer.schedule is None
    for loss in (lambda: heads(samples, block, "left"), lambda: heads(samples, block, "left", "right")):
        collect(block, loss).apply(optimizer)
        assert optimizer.schedule == ["the schedule"]
    ((native, values),) = seen
    assert native is optimizer.native
    assert values == before
    optimizer.load_state(optimizer.state())
    assert [native for native, _ in seen] == [native, optimizer.native]
    assert optimizer.native is not native


@pytest.mark.parametrize("wrong", [3, "cosine", [1]], ids=["number", "text", "list"])
def test_a_schedule_is_a_callable(samples, wrong):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    with pytest.raises(ArgumentTypeError, match="schedule"):
        unigrad.Optimizer(block, samples.sgd(0.1), schedule=wrong)

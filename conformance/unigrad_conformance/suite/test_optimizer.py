"""R4: optimizer state exists for registered parameters only, and a parameter without a gradient does not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.errors import ArgumentError
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import branches, collect, squares
from unigrad_conformance.suite.optimizer_problems import OPTIMIZERS, Reference, values_of
from unigrad_conformance.suite.problems import array, dense, to_numpy

pytestmark = pytest.mark.clause("R4")


def heads_loss(samples, block, *use):
    return sum(samples.operations.sum(out) for out in block(samples.tensor(array(2, 3)), use=use)) * 1.0


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.dtypes("float32", "float64")
def test_three_steps_are_those_of_the_formula(samples, record, dtype, kind):
    start = np.array([1.0, -2.0, 0.5])
    block = unigrad.wrap({"w": samples.leaf(start, dtype)})
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    reference = Reference(OPTIMIZERS[kind], {"w": start})
    for _ in range(3):
        collector = collect(block, squares(samples, block.parameters["w"]))
        reference.step({"w": 2 * reference.values["w"]})
        collector.apply(optimizer)
    # about ten roundings a step, values up to 2
    tolerance = float(3 * 10 * 2 * np.finfo(dtype).eps)
    np.testing.assert_allclose(to_numpy(block.parameters["w"]), reference.values["w"], rtol=0, atol=tolerance)
    record("w", block.parameters["w"], terms=30, reason="three steps of about ten roundings")


@pytest.mark.parametrize("kind", OPTIMIZERS)
@settings(max_examples=20)
@given(steps=st.lists(st.sets(st.sampled_from(["a", "b", "c"])), min_size=1, max_size=5))
def test_any_pattern_of_absent_gradients_follows_the_formula(samples, kind, steps):
    start = {"a": np.array([1.0, 2.0]), "b": np.array([-1.0, 0.5]), "c": np.array([3.0, -0.25])}
    block = unigrad.wrap({name: samples.leaf(values, "float64") for name, values in start.items()})
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    reference = Reference(OPTIMIZERS[kind], start)
    for used in steps:
        if not used:
            continue
        before = values_of(block)
        chosen = [block.parameters[name] for name in sorted(used)]
        collect(block, squares(samples, *chosen)).apply(optimizer)
        reference.step({name: 2 * reference.values[name] for name in used})
        for name in start:
            if name not in used:
                assert to_numpy(block.parameters[name]).tobytes() == before[name].tobytes()
            # about fifty roundings of values up to 3
            np.testing.assert_allclose(to_numpy(block.parameters[name]), reference.values[name], rtol=0, atol=1e-13)


@pytest.mark.parametrize("too", [False, True], ids=["others", "others-too"])
def test_an_optimizer_for_other_parameters_is_refused(samples, too):
    """Else a step moves nothing without a word; an optimizer that takes no parameters, as in Keras, serves those that it is given."""
    block = unigrad.wrap({"a": samples.leaf(array(2)), "b": samples.leaf(array(3))})
    make, stranger = samples.sgd(0.5), samples.leaf(array(2, seed=1))
    optimizer = unigrad.Optimizer(block, lambda parameters: make([*parameters, stranger] if too else [stranger]))
    collector = collect(block, squares(samples, *block.parameters.values()))
    before = values_of(block)
    message = ""
    try:
        collector.apply(optimizer)
    except ArgumentError as error:
        message = str(error)
    if message:
        assert "those that it is given" in message
        assert optimizer.native is None
    for name, value in values_of(block).items():
        np.testing.assert_array_equal(value, before[name] if message else 0 * before[name])  # x - 0.5 * 2 x


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_exists_for_registered_parameters_only(samples, record, kind):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    assert optimizer.native is None
    assert not optimizer.served
    assert not optimizer.with_state
    collect(block, lambda: heads_loss(samples, block, "left")).apply(optimizer)
    left = ["encoder.weight", "encoder.bias", "left.weight", "left.bias"]
    assert list(optimizer.served) == left
    if OPTIMIZERS[kind].has_state:
        assert list(optimizer.with_state) == left
    else:
        assert set(optimizer.with_state) <= set(left)
    record("served", list(optimizer.served))


@pytest.mark.parametrize("kind", [name for name, optimizer in OPTIMIZERS.items() if optimizer.has_state])
def test_a_branch_that_comes_into_use_later_gets_state_then(samples, kind):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    for _ in range(2):
        collect(block, lambda: heads_loss(samples, block, "left")).apply(optimizer)
    native = optimizer.native
    before = values_of(block)
    collect(block, lambda: heads_loss(samples, block, "right")).apply(optimizer)
    assert optimizer.native is native
    assert set(optimizer.with_state) == set(block.parameters)
    after = values_of(block)
    assert after["left.weight"].tobytes() == before["left.weight"].tobytes()
    assert after["right.weight"].tobytes() != before["right.weight"].tobytes()


def test_a_late_branch_starts_its_own_count_of_steps(samples):
    kind = OPTIMIZERS["adamw"]
    values = {"early": np.array([1.0, -2.0]), "late": np.array([0.5, 3.0])}
    block = unigrad.wrap({name: samples.leaf(value, "float64") for name, value in values.items()})
    optimizer = unigrad.Optimizer(block, kind.factory(samples))
    reference = Reference(kind, values)
    for used in (["early"], ["early"], ["early", "late"]):
        chosen = [block.parameters[name] for name in used]
        collect(block, squares(samples, *chosen)).apply(optimizer)
        reference.step({name: 2 * reference.values[name] for name in used})
    for name, expected in reference.values.items():
        # thirty roundings of values up to 3
        np.testing.assert_allclose(to_numpy(block.parameters[name]), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_parameter_without_a_gradient_does_not_move(samples, kind):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    collect(block, lambda: heads_loss(samples, block, "left", "right")).apply(optimizer)
    before = values_of(block)
    for _ in range(3):
        collect(block, lambda: heads_loss(samples, block, "left")).apply(optimizer)
    after = values_of(block)
    for name in block.parameters:
        assert (after[name].tobytes() == before[name].tobytes()) == name.startswith("right"), name


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_disconnected_parameter_does_not_move(samples, kind):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    before = values_of(block)
    ops = samples.operations
    collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3)), use=("right", "left"))[1])).apply(optimizer)
    after = values_of(block)
    assert after["right.weight"].tobytes() == before["right.weight"].tobytes()
    assert after["left.weight"].tobytes() != before["left.weight"].tobytes()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_frozen_parameter_does_not_move_and_comes_back_with_its_state(samples, kind):
    values = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, -1.0])}
    block = unigrad.wrap({name: samples.leaf(value, "float64") for name, value in values.items()})
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    reference = Reference(OPTIMIZERS[kind], values)
    ops = samples.operations
    for frozen in (False, True, True, False):
        block.freeze("b") if frozen else block.unfreeze("b")
        collect(block, lambda: ops.sum(block.parameters["a"] * block.parameters["b"])).apply(optimizer)
        gradients = {"a": reference.values["b"]} if frozen else {"a": reference.values["b"], "b": reference.values["a"]}
        reference.step({name: gradient.copy() for name, gradient in gradients.items()})
    for name, expected in reference.values.items():
        # forty roundings of values up to 3
        np.testing.assert_allclose(to_numpy(block.parameters[name]), expected, rtol=0, atol=1e-13)


def test_a_zero_gradient_is_a_gradient(samples):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]), "float64")})
    optimizer = unigrad.Optimizer(block, samples.sgd(0.5, decay=0.5))
    ops = samples.operations
    collect(block, lambda: ops.sum(block.parameters["w"] * 0.0)).apply(optimizer)
    # decay acts where the loss depends on the parameter: 1 - 0.5 * 0.5 * 1
    assert to_numpy(block.parameters["w"]).tolist() == [0.75]


def test_a_step_without_any_gradient_makes_no_optimizer(samples):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    optimizer = unigrad.Optimizer(block, samples.sgd(0.5, decay=0.5))
    ops = samples.operations
    collect(block, lambda: ops.sum(samples.leaf(np.array([2.0])))).apply(optimizer)
    assert optimizer.native is None
    assert to_numpy(block.parameters["w"]).tolist() == [1.0]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_framework_s_own_gradient_slots_are_as_they_were(samples, backend, kind):
    block = unigrad.wrap(dense(samples, 3, 2))
    mark = samples.tensor(array(2, 3, seed=5))
    backend.tape.set_native_gradient(block.parameters["weight"], mark)
    ops = samples.operations
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    before = values_of(block)
    collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3))))).apply(optimizer)
    assert values_of(block)["bias"].tobytes() != before["bias"].tobytes()
    held = backend.tape.native_gradient(block.parameters["weight"])
    assert to_numpy(held).tobytes() == array(2, 3, seed=5).tobytes()
    assert backend.tape.native_gradient(block.parameters["bias"]) is None


@pytest.mark.needs(Capability.LAZY_LAYERS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_made_before_the_layers_are_built_serves_them(samples, kind):
    block = unigrad.wrap(samples.layer("sequential", layers=[samples.layer("lazy_dense", outputs=2, bias=True)]))
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    ops = samples.operations
    with unigrad.GradientCollector(block) as collector:
        collector.backward(ops.sum(block(samples.tensor(array(1, 3)))))
        before = values_of(block)
        collector.apply(optimizer)
    assert optimizer.served == ("0.weight", "0.bias")
    assert all(values_of(block)[name].tobytes() != before[name].tobytes() for name in before)

"""G18: gradients reach the framework's own tools by write_back, and unigrad's optimizer by apply."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError
from unigrad_conformance.suite.block_problems import branches, collect, norm_model
from unigrad_conformance.suite.collecting import overwrite
from unigrad_conformance.suite.optimizer_problems import OPTIMIZERS, values_of
from unigrad_conformance.suite.problems import array, dense, gradients_of, to_numpy

pytestmark = pytest.mark.clause("G18")


def left_loss(samples, block):
    return samples.operations.sum(block(samples.tensor(array(2, 3)))[0])


def test_write_back_puts_gradients_where_the_framework_looks(samples, backend):
    block = unigrad.wrap(branches(samples))
    collector = collect(block, lambda: left_loss(samples, block))
    collector.write_back()
    for name, parameter in block.parameters.items():
        native = backend.tape.native_gradient(parameter)
        if name.startswith("right"):
            assert native is None, name
        else:
            assert to_numpy(native).tobytes() == to_numpy(collector.gradients[name]).tobytes()


def test_write_back_replaces_what_stood_there(samples, backend):
    block = unigrad.wrap(branches(samples))
    for parameter in block.parameters.values():
        backend.tape.set_native_gradient(
            parameter, samples.tensor(np.full(backend.arrays.shape(parameter), 7, "float32"))
        )
    collect(block, lambda: left_loss(samples, block)).write_back()
    assert backend.tape.native_gradient(block.parameters["right.weight"]) is None
    assert to_numpy(backend.tape.native_gradient(block.parameters["left.bias"])).tolist() == [2, 2]


def test_write_back_touches_own_parameters_only(samples, backend):
    block, other = unigrad.wrap(dense(samples, 3, 2)), unigrad.wrap(dense(samples, 3, 3))
    mark = samples.tensor(array(3))
    backend.tape.set_native_gradient(other.parameters["bias"], mark)
    ops = samples.operations
    collect(block, lambda: ops.sum(block(other(samples.tensor(array(2, 3)))))).write_back()
    assert to_numpy(backend.tape.native_gradient(other.parameters["bias"])).tobytes() == array(3).tobytes()
    assert backend.tape.native_gradient(other.parameters["weight"]) is None


def test_what_was_written_back_is_a_snapshot(samples, backend):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0, 2.0]))})
    w = block.parameters["w"]
    ops = samples.operations
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        collector.backward(ops.sum(w * w))
        collector.write_back()
        written = overwrite(backend, backend.tape.native_gradient(w), 7.0)
        assert to_numpy(collector.gradients["w"]).tolist() == [2, 4]
        collector.backward(ops.sum(w * w))
        assert to_numpy(backend.tape.native_gradient(w)).tolist() == ([7, 7] if written else [2, 4])
        assert to_numpy(collector.gradients["w"]).tolist() == [4, 8]
        collector.write_back()
        collector.zero()
        assert to_numpy(backend.tape.native_gradient(w)).tolist() == [4, 8]


def test_collecting_without_write_back_leaves_the_native_slots_alone(samples, backend):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1))
    collect(block, lambda: left_loss(samples, block)).apply(optimizer)
    assert all(backend.tape.native_gradient(parameter) is None for parameter in block.parameters.values())


@pytest.mark.parametrize("when", ["inside", "after"])
def test_apply_works_inside_and_after_the_with(samples, when):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0, 2.0]))})
    w = block.parameters["w"]
    optimizer = unigrad.Optimizer(block, samples.sgd(0.25))
    ops = samples.operations
    with unigrad.GradientCollector(block) as collector:
        collector.backward(ops.sum(w * w))
        if when == "inside":
            collector.apply(optimizer)
    if when == "after":
        collector.apply(optimizer)
    assert to_numpy(w).tolist() == [0.5, 1.0]


def test_scaling_and_clipping_change_what_is_applied(samples):
    ops = samples.operations
    results = []
    for change in (lambda c: c.scale(0.5), lambda c: c.clip_by_global_norm(2.5)):
        block = unigrad.wrap({"w": samples.leaf(np.array([1.5, 2.0]))})
        w = block.parameters["w"]
        optimizer = unigrad.Optimizer(block, samples.sgd(1.0))
        with unigrad.GradientCollector(block) as collector:
            collector.backward(ops.sum(w * w))  # gradient (3, 4), norm 5
            change(collector)
            collector.apply(optimizer)
        results.append(to_numpy(w))
    for result in results:
        np.testing.assert_allclose(result, [0.0, 0.0], atol=1e-6)  # a norm of two squares, rounded thrice


def test_a_weighted_mean_is_what_is_applied(samples):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    w = block.parameters["w"]
    optimizer = unigrad.Optimizer(block, samples.sgd(1.0))
    ops = samples.operations
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        collector.backward(ops.sum(w * 1.0), weight=3)
        collector.backward(ops.sum(w * 5.0), weight=1)
        collector.apply(optimizer)
    assert to_numpy(w).tolist() == [-1.0]  # 1 - (3 * 1 + 1 * 5) / 4


def test_changing_a_snapshot_does_not_change_what_is_applied(samples, backend):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0, 2.0]))})
    w = block.parameters["w"]
    optimizer = unigrad.Optimizer(block, samples.sgd(0.25))
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(w * w))
    gradient = collector.gradients["w"]
    overwrite(backend, gradient, 0.0)
    collector.apply(optimizer)
    assert to_numpy(w).tolist() == [0.5, 1.0]


def test_a_collector_of_a_part_steps_the_optimizer_of_the_whole(samples):
    model = branches(samples)
    block = unigrad.wrap(model)
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1))
    before = values_of(block)
    ops = samples.operations
    collect(model.left, lambda: ops.sum(block(samples.tensor(array(2, 3)))[0])).apply(optimizer)
    after = values_of(block)
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {"left.weight", "left.bias"}


def test_an_optimizer_of_another_block_is_refused(samples):
    block, other = unigrad.wrap(branches(samples)), unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(other, samples.sgd(0.1))
    before, others = values_of(block), values_of(other)
    collector = collect(block, lambda: left_loss(samples, block))
    with pytest.raises(ArgumentError, match="another block"):
        collector.apply(optimizer)
    assert all(values_of(block)[name].tobytes() == before[name].tobytes() for name in before)
    assert all(values_of(other)[name].tobytes() == others[name].tobytes() for name in others)


def test_a_native_optimizer_is_told_what_to_do(samples, backend):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    native = backend.optimizer.create(samples.sgd(0.1), dict(block.parameters))
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block.parameters["w"]))
    with pytest.raises(ArgumentTypeError, match="write_back"):
        collector.apply(native)


@pytest.mark.parametrize("wrong", [None, 3, "sgd", [1]], ids=["none", "number", "text", "list"])
def test_other_things_are_no_optimizer(samples, wrong):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    collector = collect(block, lambda: samples.operations.sum(block.parameters["w"]))
    with pytest.raises(ArgumentTypeError):
        collector.apply(wrong)
    with pytest.raises(ArgumentTypeError, match="callable"):
        unigrad.Optimizer(block, wrong)


def test_a_native_optimizer_is_no_factory(samples, backend):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    native = backend.optimizer.create(samples.sgd(0.1), dict(block.parameters))
    with pytest.raises(ArgumentTypeError, match="factory"):
        unigrad.Optimizer(block, native)


def test_a_factory_that_makes_no_optimizer_is_an_error_at_the_step(samples):
    block = unigrad.wrap({"w": samples.leaf(np.array([1.0]))})
    optimizer = unigrad.Optimizer(block, lambda parameters: None)
    collector = collect(block, lambda: samples.operations.sum(block.parameters["w"]))
    with pytest.raises(ArgumentTypeError, match="NoneType"):
        collector.apply(optimizer)
    assert to_numpy(block.parameters["w"]).tolist() == [1.0]
    assert optimizer.served == ()


def test_a_factory_gets_registered_parameters_only(samples):
    block = unigrad.wrap(branches(samples))
    seen = []

    def factory(parameters):
        parameters = list(parameters)
        seen.append([id(parameter) for parameter in parameters])
        return samples.sgd(0.1)(parameters)

    optimizer = unigrad.Optimizer(block, factory)
    collect(block, lambda: left_loss(samples, block)).apply(optimizer)
    registered = [id(block.parameters[name]) for name in block.registered]
    assert seen[0] == registered


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_step_takes_gradients_by_name(samples, kind):
    first, second = unigrad.wrap(branches(samples)), unigrad.wrap(branches(samples))
    one, two = (unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples)) for block in (first, second))
    for _ in range(2):
        collect(first, lambda: left_loss(samples, first)).apply(one)
        two.step(dict(collect(second, lambda: left_loss(samples, second)).gradients))
    expected, found = values_of(first), values_of(second)
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_step_refuses_wrong_names_shapes_and_dtypes_and_moves_nothing(samples):
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1))
    before = values_of(block)
    good = {"left.bias": samples.tensor(np.ones(2, "float32"))}
    with pytest.raises(ArgumentError, match=r"'left\.wieght'"):
        optimizer.step({**good, "left.wieght": samples.tensor(np.ones(2, "float32"))})
    with pytest.raises(ArgumentError, match=r"'left\.weight'.*\(2, 4\)"):
        optimizer.step({**good, "left.weight": samples.tensor(np.ones(2, "float32"))})
    shape = block.state()["left.weight"].shape
    with pytest.raises(ArgumentTypeError, match=r"gradient of 'left\.weight' is to be a tensor, not a ndarray"):
        optimizer.step({**good, "left.weight": np.ones(shape, "float32")})
    with pytest.raises(ArgumentError, match=r"'left\.weight' is float64.*float32"):
        optimizer.step({**good, "left.weight": samples.tensor(np.ones(shape))})
    wrong: Any
    for wrong in (None, [good["left.bias"]], good["left.bias"]):
        with pytest.raises(ArgumentTypeError, match="step takes a mapping of names to gradients"):
            optimizer.step(wrong)
    assert all(values_of(block)[name].tobytes() == before[name].tobytes() for name in before)
    assert optimizer.native is None


def test_a_step_serves_a_joined_block(samples):
    a, b = dense(samples, 3, 3), dense(samples, 3, 2)
    block = unigrad.join(a=a, b=b)
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1))
    ops = samples.operations
    before = values_of(block)
    collect(block, lambda: ops.sum(unigrad.wrap(b)(unigrad.wrap(a)(samples.tensor(array(2, 3)))))).apply(optimizer)
    assert optimizer.served == tuple(block.parameters)
    assert all(values_of(block)[name].tobytes() != before[name].tobytes() for name in before)


def test_buffers_are_not_stepped(samples):
    block = unigrad.wrap(norm_model(samples)).eval()
    optimizer = unigrad.Optimizer(block, samples.adamw(0.1, 0.1))
    before = block.state()
    ops = samples.operations
    collect(block, lambda: ops.sum(block(samples.tensor(array(4, 1))))).apply(optimizer)
    after = block.state()
    assert {name for name in before if before[name].tobytes() != after[name].tobytes()} == {"norm.weight", "norm.bias"}


def test_two_steps_from_one_collector_are_two_steps(samples):
    block = unigrad.wrap({"w": samples.leaf(np.array([8.0]))})
    w = block.parameters["w"]
    optimizer = unigrad.Optimizer(block, samples.sgd(0.25))
    ops = samples.operations
    with unigrad.GradientCollector(block, accumulate="write") as collector:
        for expected in (4.0, 2.0):
            collector.backward(ops.sum(w * w))
            collector.apply(optimizer)
            assert to_numpy(w).tolist() == [expected]
    assert gradients_of(collector)["w"].tolist() == [8.0]

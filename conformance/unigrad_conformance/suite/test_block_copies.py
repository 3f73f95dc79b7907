"""B3: a block can be deep-copied, and the copy shares nothing; B6: NumPy interchange copies."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import unigrad
from unigrad.errors import UnsupportedError
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import branches, collect, fill, norm_model, state_bits
from unigrad_conformance.suite.optimizer_problems import OPTIMIZERS
from unigrad_conformance.suite.problems import array, dense, mlp, to_numpy


@pytest.mark.clause("B3")
def test_a_copy_computes_the_same_and_is_independent(samples, backend):
    block = unigrad.wrap(mlp(samples, 3, 4, 2))
    twin = copy.deepcopy(block)
    x = samples.tensor(array(5, 3))
    out = to_numpy(block(x))
    assert twin is not block
    assert twin.native is not block.native
    assert list(twin.parameters) == list(block.parameters)
    assert to_numpy(twin(x)).tobytes() == out.tobytes()
    fill(backend, twin)
    assert to_numpy(block(x)).tobytes() == out.tobytes()
    assert to_numpy(twin(x)).tobytes() != out.tobytes()


@pytest.mark.clause("B3")
def test_the_block_of_a_copied_model_is_the_copy(samples):
    twin = copy.deepcopy(unigrad.wrap(mlp(samples, 3, 2)))
    assert unigrad.wrap(twin.native) is twin


@pytest.mark.clause("B3")
def test_a_copy_keeps_mode_and_freezing(samples):
    block = unigrad.wrap(norm_model(samples)).train().freeze("norm")
    twin = copy.deepcopy(block)
    assert twin.training is True
    twin(samples.tensor(array(4, 1)))
    assert state_bits(twin) == state_bits(block)
    block.unfreeze()
    ops = samples.operations
    x = samples.tensor(array(4, 1))
    collector = collect(twin, lambda: ops.sum(twin(samples.leaf(array(4, 1)) + x)))
    assert not collector.gradients
    assert collector.usage.frozen == ("norm.weight", "norm.bias")


@pytest.mark.clause("B3")
def test_buffers_of_a_copy_move_alone(samples):
    block = unigrad.wrap(norm_model(samples)).train()
    before = state_bits(block)
    twin = copy.deepcopy(block)
    twin(samples.tensor(array(4, 1)))
    assert state_bits(block) == before
    assert state_bits(twin) != before


@pytest.mark.clause("B3", "B1")
def test_ties_survive_copying(samples):
    layer = dense(samples, 2, 2)
    block = unigrad.wrap(samples.layer("sequential", layers=[layer, layer]))
    twin = copy.deepcopy(block)
    assert dict(twin.aliases) == dict(block.aliases) == {"1.weight": "0.weight", "1.bias": "0.bias"}


@pytest.mark.clause("B3")
def test_a_block_that_stands_twice_is_copied_once(samples):
    block = unigrad.wrap(mlp(samples, 3, 2))
    first, second = copy.deepcopy([block, block])
    assert first is second


@pytest.mark.clause("B3")
def test_a_native_copy_is_another_block(samples, backend):
    model = branches(samples)
    block = unigrad.wrap(model)
    twin = unigrad.wrap(backend.block.copy(model))
    assert twin is not block
    assert list(twin.parameters) == list(block.parameters)
    assert all(twin.parameters[name] is not block.parameters[name] for name in block.parameters)


@pytest.mark.clause("B3", "B7")
def test_blocks_without_a_model_say_that_they_cannot_be_copied(samples):
    with pytest.raises(UnsupportedError, match="copy"):
        copy.deepcopy(unigrad.wrap({"w": samples.leaf(array(2))}))
    with pytest.raises(UnsupportedError, match="copy"):
        copy.deepcopy(unigrad.join(a=branches(samples), b=branches(samples)))


@pytest.mark.clause("B3", "B4")
@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_a_copy_taken_inside_a_collector_is_no_part_of_it(samples):
    block = unigrad.wrap(samples.layer("sequential", layers=[samples.layer("lazy_dense", outputs=2, bias=True)]))
    ops = samples.operations
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        twin = copy.deepcopy(block)
        twin(samples.tensor(array(1, 3)))
        collector.backward(ops.sum(block(samples.tensor(array(1, 5)))))
    assert block.registered == ("0.weight", "0.bias")
    assert not twin.registered


@pytest.mark.clause("B6")
def test_reading_a_tensor_copies(samples, backend, dtype):
    tensor = samples.tensor(np.array([1.0, 2.0, 3.0]), dtype)
    values = backend.arrays.to_numpy(tensor)
    assert values.dtype.name == dtype
    assert values.flags.c_contiguous
    values[...] = 0
    assert list(backend.arrays.to_numpy(tensor).astype("float64")) == [1, 2, 3]


@pytest.mark.clause("B6")
def test_making_a_tensor_copies(samples, backend, dtype):
    values = backend.arrays.to_numpy(samples.tensor(np.array([1.0, 2.0, 3.0]), dtype))
    tensor = backend.arrays.from_numpy(values)
    assert backend.arrays.dtype(tensor) == dtype
    values[...] = 0
    assert list(backend.arrays.to_numpy(tensor).astype("float64")) == [1, 2, 3]


@pytest.mark.clause("B6")
def test_every_value_of_a_dtype_survives_the_way_there_and_back(samples, backend, dtype):
    special = [0.0, -0.0, np.inf, -np.inf, 1.0, -1.5, 3.140625, 2.0**-10]
    values = backend.arrays.to_numpy(samples.tensor(np.array(special), dtype))
    assert backend.arrays.to_numpy(backend.arrays.from_numpy(values)).tobytes() == values.tobytes()
    assert [float(value) for value in values] == special


@pytest.mark.clause("B6")
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 1)], ids=["no-axes", "empty", "empty-inside", "ones"])
def test_shapes_without_elements_or_axes_survive(backend, shape):
    values = np.ones(shape, "float32")
    back = backend.arrays.to_numpy(backend.arrays.from_numpy(values))
    assert (back.shape, back.dtype) == (shape, values.dtype)


@pytest.mark.clause("B6")
def test_values_of_a_view_are_read_in_order(samples, backend):
    ops = samples.operations
    tensor = samples.tensor(np.arange(6, dtype="float32").reshape(2, 3))
    values = backend.arrays.to_numpy(ops.transpose(tensor, (1, 0)))
    assert values.flags.c_contiguous
    assert values.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.clause("B3", "G4")
def test_what_is_not_pickled_or_copied_says_what_to_do(samples):
    block = unigrad.wrap(mlp(samples, 3, 2))
    joined = unigrad.join(part=block)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS["sgd"].factory(samples))
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(array(5, 3)))))
        collector.apply(optimizer)
        for thing, instead in (
            (block, r"save\(path\)"),
            (joined, r"save\(path\)"),
            (collector, "gradients"),
            (optimizer, "save_training"),
        ):
            with pytest.raises(UnsupportedError, match=instead):
                pickle.dumps(thing)
        for thing in (collector, optimizer):
            for duplicate in (copy.copy, copy.deepcopy):
                with pytest.raises(UnsupportedError, match="pickle or copy"):
                    duplicate(thing)
    assert copy.copy(block) is block
    assert copy.copy(joined) is joined

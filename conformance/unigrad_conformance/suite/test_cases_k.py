"""Cases of kind K: rows of a table that are looked up several times add up, whatever the framework stores."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.block_problems import collect
from unigrad_conformance.suite.collecting import f32, overwrite, whole_tape
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.clause("G10")


def table_block(samples, padding_index=None):
    weight = np.ones((4, 2), "float32")
    return unigrad.wrap(samples.layer("embedding", weight=weight, padding_index=padding_index))


def ids(samples, *numbers):
    return samples.tensor(np.array(numbers, "int64"))


@pytest.mark.case(85)
@pytest.mark.parametrize("way", ["layer", "take", "index"])
def test_85_repeated_indices_add(samples, record, way):
    block = table_block(samples)
    table = block.parameters["weight"]
    ops = samples.operations
    look_up = {
        "layer": lambda: block(ids(samples, 0, 0, 2)),
        "take": lambda: ops.take(table, ids(samples, 0, 0, 2)),
        "index": lambda: ops.index(table, np.array([0, 0, 2])),
    }[way]
    collector = collect(block, lambda: ops.sum(look_up()))
    assert to_numpy(collector.gradients["weight"]).tolist() == [[2, 2], [0, 0], [1, 1], [0, 0]]
    record("table", collector.gradients["weight"], reason="counts")


@pytest.mark.case(86)
def test_86_rounds_with_different_numbers_of_indices_add(samples, backend, record):
    block = table_block(samples)
    ops = samples.operations
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        collector.backward(ops.sum(block(ids(samples, 0, 0, 2))))
        collector.backward(ops.sum(block(ids(samples, 1))))
    gradient = collector.gradients["weight"]
    assert backend.arrays.shape(gradient) == (4, 2)
    assert to_numpy(gradient).tolist() == [[2, 2], [1, 1], [1, 1], [0, 0]]
    record("table", gradient, reason="counts")


@pytest.mark.case(87)
@pytest.mark.clause("C1")
@pytest.mark.parametrize("order", ["lookup-first", "dense-first"])
@pytest.mark.parametrize("way", ["one-loss", "two-losses", "two-backwards"])
def test_87_a_lookup_in_a_checkpoint_and_a_dense_use_add(samples, backend, record, way, order):
    block = table_block(samples)
    table = block.parameters["weight"]
    ops = samples.operations
    run = unigrad.checkpoint(lambda numbers: block(numbers), blocks=[block])
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        losses = [ops.sum(run(ids(samples, 0, 0, 2))), ops.sum(table * table)]
        if order == "dense-first":
            losses.reverse()
        if way == "one-loss":
            collector.backward(losses[0] + losses[1])
        elif way == "two-losses":
            collector.backward(losses)
        else:
            for loss in losses:
                collector.backward(loss, retain_graph=whole_tape(backend) and loss is losses[0])
    assert to_numpy(collector.gradients["weight"]).tolist() == [[4, 4], [2, 2], [3, 3], [2, 2]]
    record("table", collector.gradients["weight"], reason="sums of small whole numbers")


@pytest.mark.case(88)
@pytest.mark.clause("G11")
def test_88_rows_of_two_parts_are_merged_in_the_mean(samples, record):
    block = table_block(samples)
    ops = samples.operations
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        for numbers in ((0, 1), (0, 2)):
            collector.backward(ops.sum(block(ids(samples, *numbers))), weight=1)
    assert to_numpy(collector.gradients["weight"]).tolist() == [[1, 1], [0.5, 0.5], [0.5, 0.5], [0, 0]]
    record("table", collector.gradients["weight"], reason="halves of counts")


@pytest.mark.case(89)
def test_89_the_padding_row_has_a_gradient_of_zero(samples, record):
    block = table_block(samples, padding_index=0)
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(ids(samples, 0, 0, 2))))
    assert to_numpy(collector.gradients["weight"]).tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    record("table", collector.gradients["weight"], reason="counts")


@pytest.mark.case(85)
@pytest.mark.clause("G7")
def test_85_a_looked_up_gradient_is_a_dense_tensor_of_its_own(samples, backend):
    block = table_block(samples)
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(ids(samples, 0, 0, 2))))
    gradient = collector.gradients["weight"]
    written = overwrite(backend, gradient, array(4, 2))
    assert to_numpy(gradient).tolist() == (array(4, 2) if written else f32([[2, 2], [0, 0], [1, 1], [0, 0]])).tolist()


@pytest.mark.case(85)
def test_85_a_lookup_of_nothing_is_a_zero_gradient(samples):
    block = table_block(samples)
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(ids(samples))))
    assert to_numpy(collector.gradients["weight"]).tolist() == [[0, 0]] * 4

"""Several inputs and outputs of a microbatched call: split, whole, nested, combined (clause M2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import unigrad
from unigrad import ArgumentError
from unigrad.protocols import Guarantee
from unigrad_conformance.observations import EPSILON
from unigrad_conformance.suite.parts import bits_of_parts, loop, same_step, single_steps, step
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

pytestmark = pytest.mark.clause("M2")


def weight_block(samples, *shape):
    """Return a native leaf and the block that holds it."""
    leaf = samples.leaf(array(*shape, seed=20))
    return leaf, unigrad.wrap({"weight": leaf})


def close(found, reference, terms):
    """Assert equality within roundings of sums of ``terms`` terms of about the size of the largest value."""
    assert sorted(found) == sorted(reference)
    for name, value in reference.items():
        atol = 4 * terms * EPSILON[value.dtype.name] * max(np.abs(value).max(initial=0), 1)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


def test_two_inputs_and_two_outputs(samples, guarantee, record):
    ops = samples.operations
    weight, block = weight_block(samples, 3, 3)

    def function(a, b):
        h = ops.matmul(a, weight)
        return ops.tanh(h + b), ops.sin(h)

    inputs = {"a": samples.tensor(array(5, 3, seed=1)), "b": samples.tensor(array(5, 3, seed=2))}
    found = step(samples, block, unigrad.microbatch(function, 2, blocks=block), inputs)
    reference = step(samples, block, loop(samples, function, 2), inputs)
    if guarantee(Guarantee.BITEXACT_SHARING) == "kept":
        same_step(found, reference)
    else:  # the weight and the first input reach both outputs: their two contributions may be added before or after
        same_bits(found.outputs, reference.outputs)
        close(found.inputs, reference.inputs, terms=8)
        close(found.gradients, reference.gradients, terms=13)
    assert sorted(found.inputs) == ["a", "b"]
    record("gradients", found.gradients, terms=13, reason="products of 3, summed over 5 samples and 2 outputs")
    record("inputs", found.inputs, terms=8, reason="products of 3 through two outputs")


def test_whole_arguments_from_one_operation_have_each_their_gradient(samples):
    """Keys and values of one projection, which a graph may have one node for."""
    ops, found = samples.operations, []

    def attend(q, k, v):
        return ops.matmul(ops.tanh(ops.matmul(q, ops.transpose(k, (1, 0)))), v)

    for attended in (attend, unigrad.microbatch(attend, 2, blocks=[], whole=("k", "v"))):
        weight, block = weight_block(samples, 3, 6)
        with unigrad.GradientCollector(block) as collector:
            k, v = ops.split(ops.matmul(samples.tensor(array(4, 3, seed=1)), weight), 2, 1)
            collector.backward(ops.sum(attended(samples.tensor(array(5, 3, seed=2)), k, v)))
        found.append(gradients_of(collector))
    # products of 3, then of 4, summed over 5 samples and 3 outputs
    close(found[1], found[0], terms=27)


def test_one_of_two_outputs_used(samples):
    ops = samples.operations
    first, second = samples.leaf(array(3, seed=3)), samples.leaf(array(3, seed=4))
    block = unigrad.wrap({"first": first, "second": second})

    def function(x):
        return x * first, x * second

    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        _, used = unigrad.microbatch(function, 2, blocks=block)(samples.tensor(array(5, 3)))
        collector.backward(ops.sum(used))
    assert list(collector.gradients) == ["second"]
    # The gradient is the sum of the inputs over 5 samples.
    close(gradients_of(collector), {"second": array(5, 3).sum(0)}, 5)


def test_positional_and_keyword_tensors_are_both_split(samples):
    seen = []

    def function(a, *, b):
        seen.append((to_numpy(a).shape, to_numpy(b).shape))
        return a * b

    weight, block = weight_block(samples, 3)
    a, b = (samples.tensor(array(5, 3, seed=seed)) for seed in (1, 2))
    split = unigrad.microbatch(lambda a, *, b: function(a, b=b) * weight, 2, blocks=block)
    same_bits({"y": to_numpy(split(a, b=b))}, {"y": array(5, 3, seed=1) * array(5, 3, seed=2) * array(3, seed=20)})
    assert seen == [((2, 3), (2, 3)), ((2, 3), (2, 3)), ((1, 3), (1, 3))]


def test_tensors_inside_nested_arguments_are_split(samples):
    weight, block = weight_block(samples, 3)

    def function(batch):
        return {"sum": (batch["x"] + batch["pair"][0]) * weight, "pair": [batch["pair"][1]]}

    x, left, right = (samples.tensor(array(5, 3, seed=seed)) for seed in range(3))
    found = unigrad.microbatch(function, 2, blocks=block)({"x": x, "pair": (left, right)})
    assert list(found) == ["sum", "pair"]
    assert isinstance(found["pair"], list)
    expected = (array(5, 3, seed=0) + array(5, 3, seed=1)) * array(3, seed=20)
    same_bits({"sum": to_numpy(found["sum"])}, {"sum": expected})
    same_bits({"pair": to_numpy(found["pair"][0])}, {"pair": array(5, 3, seed=2)})


class Pair(NamedTuple):
    """Outputs with names."""

    plain: object
    doubled: object


def test_a_named_tuple_comes_back_as_one(samples):
    weight, block = weight_block(samples, 3)
    found = unigrad.microbatch(lambda x: Pair(x * weight, x * 2), 2, blocks=block)(samples.tensor(array(5, 3)))
    assert isinstance(found, Pair)
    same_bits({"doubled": to_numpy(found.doubled)}, {"doubled": array(5, 3) * np.float32(2)})


def test_the_same_tensor_as_two_arguments(samples):
    ops = samples.operations
    weight, block = weight_block(samples, 3)

    def function(a, b):
        return a * weight + ops.sin(b)

    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(array(5, 3)), name="x")
        collector.backward(ops.sum(unigrad.microbatch(function, 2, blocks=block)(x, x)))
    # d/dx (x w + sin x) = w + cos x: two terms, and the cosine itself to a rounding or two.
    expected = array(3, seed=20) + np.cos(array(5, 3))
    close({"x": to_numpy(collector.input_gradients["x"])}, {"x": expected}, 4)


def test_whole_arguments_go_to_every_part_and_their_gradients_sum(samples, record):
    ops = samples.operations
    weight, block = weight_block(samples, 5)
    seen = []

    def function(x, mask):
        seen.append((to_numpy(x).shape, to_numpy(mask).shape))
        return ops.matmul(x, mask) * weight

    # The mask has as many rows as the batch has samples: nothing is guessed from sizes.
    inputs = {"x": samples.tensor(array(5, 5, seed=1)), "mask": samples.tensor(array(5, 5, seed=2))}
    found = step(samples, block, unigrad.microbatch(function, 2, blocks=block, whole=("mask",)), inputs)
    assert [shapes for shapes in seen[:3]] == [((2, 5), (5, 5)), ((2, 5), (5, 5)), ((1, 5), (5, 5))]
    reference = step(samples, block, function, inputs)
    # Products of 5 elements, a tanh and its derivative; gradients sum over 5 samples.
    close(found.all(), reference.all(), 16)
    record("mask", found.inputs["mask"], terms=10, reason="products of 5, summed over 5 samples")


def test_a_tensor_not_named_whole_is_split_whatever_its_meaning(samples):
    weight, block = weight_block(samples, 4)
    seen = []

    def function(x, table):
        seen.append(to_numpy(table).shape)
        return x * weight

    unigrad.microbatch(function, 2, blocks=block)(samples.tensor(array(4, 4)), samples.tensor(array(4, 9)))
    assert seen[:2] == [(2, 9), (2, 9)]


def test_a_whole_name_that_no_argument_has(samples):
    weight, block = weight_block(samples, 3)
    split = unigrad.microbatch(lambda x, mask: x * weight, 2, blocks=block, whole=("msak",))
    with pytest.raises(ArgumentError, match=r"msak.*x, mask"):
        split(samples.tensor(array(4, 3)), samples.tensor(array(3)))


def test_a_whole_argument_may_be_left_out(samples):
    weight, block = weight_block(samples, 3)

    def function(x, *, mask=None):
        return x * weight if mask is None else x * weight * mask

    x, mask = (samples.tensor(array(*shape, seed=seed)) for shape, seed in (((4, 3), 1), ((3,), 2)))
    split = unigrad.microbatch(function, 2, blocks=block, whole=("mask",))
    close({"y": to_numpy(split(x))}, {"y": to_numpy(function(x))}, 1)
    close({"y": to_numpy(split(x, mask=mask))}, {"y": to_numpy(function(x, mask=mask))}, 1)


def test_numbers_and_none_are_given_to_every_part_as_they_are(samples):
    weight, block = weight_block(samples, 3)
    seen = []

    def function(x, factor, mode, nothing=None):
        seen.append((factor, mode, nothing))
        return x * weight * factor

    found = unigrad.microbatch(function, 2, blocks=block)(samples.tensor(array(3, 3)), 2.0, "fast", nothing=None)
    assert seen == [(2.0, "fast", None)] * 2
    same_bits({"y": to_numpy(found)}, {"y": array(3, 3) * array(3, seed=20) * np.float32(2)})


@pytest.mark.parametrize("value", [None, True, 7, "mode"], ids=["none", "bool", "int", "str"])
def test_equal_plain_outputs_are_returned_once(samples, value):
    weight, block = weight_block(samples, 3)
    found = unigrad.microbatch(lambda x: (x * weight, value), 2, blocks=block)(samples.tensor(array(5, 3)))
    assert found[1] is value or (type(found[1]) is type(value) and found[1] == value)


@pytest.mark.parametrize("values", [(1, 2, 3), (True, 1, 1), ("a", "a", "b"), (None, None, 0)], ids=repr)
def test_plain_outputs_that_differ_are_an_error(samples, values):
    weight, block = weight_block(samples, 3)
    supply = iter(values)
    split = unigrad.microbatch(lambda x: (x * weight, next(supply)), 2, blocks=block)
    with pytest.raises(ArgumentError, match=r"output\[1\]"):
        split(samples.tensor(array(5, 3)))


def test_outputs_nested_differently_are_an_error(samples):
    weight, block = weight_block(samples, 3)
    split = unigrad.microbatch(lambda x: (x * weight,) if to_numpy(x).shape[0] == 2 else [x * weight], 2, blocks=block)
    with pytest.raises(ArgumentError, match="nested"):
        split(samples.tensor(array(5, 3)))


def auxiliary(samples, weight):
    """Return a function with a batch output and one loss for each part."""
    ops = samples.operations

    def function(x):
        y = x * weight
        return y, ops.mean(ops.sin(y))

    return function


def expected_auxiliary(rule):
    """Return the combined loss and its gradient for parts of 2, 2 and 1, worked out in float64."""
    x, weight = array(5, 3, seed=5).astype(float), array(3, seed=20).astype(float)
    value, gradient = 0.0, np.zeros(3)
    for rows in (slice(0, 2), slice(2, 4), slice(4, 5)):
        part = x[rows]
        share = {"sum": 1.0, "mean": len(part) / 5, "twice": 2.0}[rule]
        value += share * np.mean(np.sin(part * weight))
        gradient += share * np.sum(np.cos(part * weight) * part, 0) / part.size
    return value, gradient


@pytest.mark.parametrize("rule", ["sum", "mean", "twice"])
def test_outputs_that_are_one_a_part_are_combined(samples, record, rule):
    weight, block = weight_block(samples, 3)
    combine = rule if rule != "twice" else lambda values: (values[0] + values[1] + values[2]) * 2.0
    split = unigrad.microbatch(auxiliary(samples, weight), 2, blocks=block, combine=combine)
    with unigrad.GradientCollector(block) as collector:
        y, loss = split(samples.tensor(array(5, 3, seed=5)))
        collector.backward(loss)
    assert to_numpy(y).shape == (5, 3)
    value, gradient = expected_auxiliary(rule)
    # 15 terms of size up to 1 and a few roundings each.
    np.testing.assert_allclose(to_numpy(loss), value, rtol=0, atol=64 * EPSILON["float32"])
    np.testing.assert_allclose(gradients_of(collector)["weight"], gradient, rtol=0, atol=64 * EPSILON["float32"])
    record("loss", to_numpy(loss), terms=15, scale=1.0, reason="a mean of 15 values of size up to 1")
    record("gradients", collector.gradients, terms=15, scale=3.0, reason="sums of 5 products, over three parts")


def test_the_mean_over_parts_is_the_mean_over_the_batch(samples):
    weight, block = weight_block(samples, 3)
    function = auxiliary(samples, weight)
    x = samples.tensor(array(7, 3, seed=5))
    _, whole = function(x)
    _, split = unigrad.microbatch(function, 3, blocks=block, combine="mean")(x)
    # A mean of 21 values of size up to 1, in two orders.
    np.testing.assert_allclose(to_numpy(split), to_numpy(whole), rtol=0, atol=64 * EPSILON["float32"])


def test_a_rule_for_one_output_by_its_key(samples):
    ops = samples.operations
    weight, block = weight_block(samples, 3)

    def function(x):
        return {"y": x * weight, "sums": ops.sum(x, 0), "count": ops.sum(x * 0.0 + 1.0)}

    split = unigrad.microbatch(function, 2, blocks=block, combine={"sums": "sum", "count": lambda values: len(values)})
    found = split(samples.tensor(array(5, 3)))
    assert to_numpy(found["y"]).shape == (5, 3)
    # 5 terms a sum.
    close({"sums": to_numpy(found["sums"])}, {"sums": array(5, 3).sum(0)}, 5)
    assert found["count"] == 3


@pytest.mark.parametrize(("rule", "kind"), [("mean", "int64"), ("mean", "bool"), ("sum", "bool")])
def test_a_rule_whose_result_the_dtype_can_not_hold_is_an_error(samples, rule, kind):
    # The mean of the counts 2, 3 and 2 is no whole number, and the sum of two truths none of the two.
    weight, block = weight_block(samples, 3)

    def function(x):
        return {"y": x * weight, "hits": samples.tensor(np.array(1, kind))}

    with pytest.raises(ArgumentError, match=rf"hits.*{kind}.*'{rule}'"):
        unigrad.microbatch(function, 2, blocks=block, combine={"hits": rule})(samples.tensor(array(5, 3)))


def test_a_rule_for_an_output_that_is_not_there_is_an_error(samples):
    weight, block = weight_block(samples, 3)
    split = unigrad.microbatch(lambda x: {"loss": x * weight}, 2, blocks=block, combine={"lsos": "sum"})
    with pytest.raises(ArgumentError, match=r"'lsos'.*output\['loss'\]"):
        split(samples.tensor(array(5, 3)))


@pytest.mark.parametrize("combine", ["median", 3, {"loss": "median"}], ids=repr)
def test_an_unknown_rule_is_an_error_at_once(samples, combine):
    _, block = weight_block(samples, 3)
    with pytest.raises(ArgumentError, match="combine"):
        unigrad.microbatch(lambda x: x, 2, blocks=block, combine=combine)


@pytest.mark.clause("M1")
def test_a_block_with_two_inputs(samples, guarantee):
    def forward(self, a, b):
        return self.left(a), self.right(b)

    layers = {"left": dense(samples, 3, 2, seed=1), "right": dense(samples, 4, 2, seed=2)}
    block = unigrad.wrap(samples.model(forward, layers=layers))
    inputs = {"a": samples.tensor(array(5, 3)), "b": samples.tensor(array(5, 4))}
    found = step(samples, block, unigrad.microbatch(block, 2), inputs)
    reference = step(samples, block, loop(samples, block, 2), inputs)
    terms = single_steps(samples, block, block, inputs, 2)
    bits_of_parts(found, reference, terms, guarantee(Guarantee.BITEXACT_SHARING))

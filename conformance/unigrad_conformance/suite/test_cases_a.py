"""Real faults of kind A: accumulation, write, add and zero."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.collecting import close, collects, f32, leaves
from unigrad_conformance.suite.problems import to_numpy

EXACT = "small integers, exact in every dtype"
# Values of the cases are given to six decimals, and a float32 sum of a few terms is as good as that.
DIGITS = 1e-5


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.clause("G1", "G0")
@pytest.mark.case(1)
def test_each_new_collector_starts_from_nothing(samples, record):
    own = leaves(samples, x=[0, 1, 2, 3])
    for _ in range(4):
        with collector_of(own, "write") as collector:
            collector.backward(samples.operations.sum(own["x"] * own["x"]) * 2.0)
        collects(collector.gradients, x=[0, 4, 8, 12])
    record("write", collector.gradients, reason=EXACT)
    with collector_of(own, "add") as collector:
        for count in range(1, 5):
            collector.backward(samples.operations.sum(own["x"] * own["x"]) * 2.0)
            collects(collector.gradients, x=count * np.array([0, 4, 8, 12]))
    collects(collector.gradients, x=[0, 16, 32, 48])
    record("add", collector.gradients, reason=EXACT)


@pytest.mark.clause("G2")
@pytest.mark.case(2)
@pytest.mark.parametrize("mode", ["write", "add"])
def test_repeated_backward_on_one_graph(samples, record, mode):
    own = leaves(samples, x1=[1, 2, 3, 4], x2=[5, 6, 7, 8])
    with collector_of(own, mode) as collector:
        loss = samples.operations.sum(own["x1"] * own["x2"] * own["x1"])
        for count, retain in ((1, True), (2, True), (3, False)):
            collector.backward(loss, retain_graph=retain)
            times = count if mode == "add" else 1
            wanted = {"x1": times * np.array([10, 24, 42, 64]), "x2": times * np.array([1, 4, 9, 16])}
            collects(collector.gradients, **wanted)
        with pytest.raises(unigrad.GraphReleasedError):
            collector.backward(loss)
        collects(collector.gradients, **wanted)
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G4")
@pytest.mark.case(3)
def test_two_collectors_of_two_blocks(samples, record):
    first, second = leaves(samples, a=2), leaves(samples, b=3)
    with collector_of(first) as left:
        left.backward(first["a"] * first["a"])
        with collector_of(second) as right:
            collects(left.gradients, a=4)
            right.backward(second["b"] * second["b"] * second["b"])
            collects(left.gradients, a=4)
        collects(left.gradients, a=4)
    collects(left.gradients, a=4)
    collects(right.gradients, b=27)
    record("a", left.gradients, reason=EXACT)
    record("b", right.gradients, reason=EXACT)


@pytest.mark.clause("G4")
@pytest.mark.case(3)
@pytest.mark.parametrize("wide", [False, True], ids=["the-same-block", "its-parent"])
def test_a_second_collector_while_one_is_open(samples, wide):
    part = samples.model(lambda self: self.a * self.a, parameters={"a": f32(2)})
    whole = samples.model(lambda self: self.part(), layers={"part": part})
    with collector_of(part) as first:
        first.backward(part())
        with collector_of(whole if wide else part) as second:
            second.zero()
            second.backward(whole())
            second.zero()
            collects(first.gradients, a=4)
            second.backward(whole())
    collects(first.gradients, a=4)
    collects(second.gradients, **{"part.a" if wide else "a": 4})


@pytest.mark.clause("G1", "G10")
@pytest.mark.case(5)
@pytest.mark.parametrize(
    ("times", "loss", "wanted"),
    [(1, 2, [[1, 1], [2, 2]]), (2, 6, [[5, 1.5], [6, -1]]), (5, 8, [[36, 8], [24, 24]])],
    ids=["once", "twice", "five-times"],
)
def test_a_parameter_used_several_times_in_one_forward(samples, record, times, loss, wanted):
    own = leaves(samples, w=[[1, 2], [0.5, -1]])
    with collector_of(own, "add") as collector:
        for count in (1, 2):
            hidden = samples.tensor(f32([[1, 2]]))
            for _ in range(times):
                hidden = samples.operations.matmul(hidden, own["w"])
            total = samples.operations.sum(hidden)
            collector.backward(total)
            collects(collector.gradients, w=count * np.array(wanted))
    assert to_numpy(total) == loss
    with collector_of(own, "write") as collector:
        hidden = samples.tensor(f32([[1, 2]]))
        for _ in range(times):
            hidden = samples.operations.matmul(hidden, own["w"])
        collector.backward(samples.operations.sum(hidden))
    collects(collector.gradients, w=wanted)
    record("gradients", collector.gradients, reason="multiples of a power of two, exact")


@pytest.mark.clause("G1", "G9")
@pytest.mark.case(6)
def test_batch_normalization_in_add(samples, record):
    layer = samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)
    block = unigrad.wrap(layer).train()
    weights = samples.tensor(f32([[1, 2], [3, 4]]))
    with collector_of(block) as collector:
        x = collector.watch(samples.tensor(f32(np.arange(12)).reshape(1, 3, 2, 2)), "x")
        for count in (1, 2, 3):
            collector.backward(samples.operations.sum(block(x) * weights))
            close(collector.gradients, DIGITS, weight=[count * 4.472118] * 3, bias=[count * 10] * 3)
    close(collector.gradients, DIGITS, weight=[13.416354] * 3, bias=[30] * 3)
    # What is left of numbers of size 1.4 that cancel, in each of three rounds; the case gives two digits.
    pattern = np.tile(f32([[-3.2e-5, -1.1e-5], [1.1e-5, 3.2e-5]]), (1, 3, 1, 1))
    np.testing.assert_allclose(to_numpy(collector.input_gradients["x"]), pattern, rtol=0, atol=3 * 1.4 * 8 * 2.0**-23)
    record("gradients", collector.gradients, terms=12, reason="three rounds of a sum of four")
    record(
        "inputs", collector.input_gradients, terms=12, scale=1.4, reason="terms of size 1.4 that cancel, three rounds"
    )


@pytest.mark.clause("G10", "G1")
@pytest.mark.case(7)
def test_two_losses_on_one_trunk(samples, record):
    own = leaves(samples, w=2, a=3, b=5)

    def losses():
        trunk = own["w"] * 4.0
        square = own["b"] * trunk
        return own["a"] * trunk, square * square

    for mode in ("write", "add"):
        with collector_of(own, mode) as collector:
            collector.backward(list(losses()))
        collects(collector.gradients, w=1612, a=8, b=640)
    with collector_of(own, "add") as collector:
        first, second = losses()
        collector.backward(first, retain_graph=True)
        collector.backward(second)
    collects(collector.gradients, w=1612, a=8, b=640)
    record("add", collector.gradients, reason=EXACT)
    with collector_of(own, "write") as collector:
        first, second = losses()
        collector.backward(first, retain_graph=True)
        collects(collector.gradients, w=12, a=8)
        collector.backward(second)
    collects(collector.gradients, w=1600, b=640)
    record("write", collector.gradients, reason=EXACT)


@pytest.mark.clause("G1")
@pytest.mark.case(8)
def test_softmax_in_add(samples, record):
    own = leaves(samples, x=[0, 1, 2])
    weights = samples.tensor(f32([1, 2, 3]))
    wanted = np.array([-0.141817, -0.140770, 0.282587])
    with collector_of(own) as collector:
        for count in (1, 2):
            collector.backward(samples.operations.sum(samples.operations.softmax(own["x"], 0) * weights))
            close(collector.gradients, DIGITS, x=count * wanted)
            if count == 1:
                once = to_numpy(collector.gradients["x"])
    np.testing.assert_array_equal(to_numpy(collector.gradients["x"]), 2 * once)
    record("gradients", collector.gradients, terms=6, scale=3.0, reason="sums of three terms up to three, that cancel")


@pytest.mark.clause("G5", "G1")
@pytest.mark.case(9)
def test_a_second_backward_after_one_zero(samples, record):
    model = samples.layer("dense", weight=f32([[0.5]]), bias=f32([0.25]))
    x, target = samples.tensor(f32([[2]])), 0.0
    for _ in range(50):
        with collector_of(model) as collector:
            collector.zero()
            for count in (1, 2):
                error = model(x) - target
                collector.backward(samples.operations.mean(error * error))
                collects(collector.gradients, weight=[[5 * count]], bias=[2.5 * count])
    record("gradients", collector.gradients, reason="multiples of a power of two, exact")

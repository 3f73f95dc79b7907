"""Clause G4: a collector touches its own block only; collectors nest and close in any order."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad_conformance.suite.collecting import collects, f32, leaves, native_gradients
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits

pytestmark = pytest.mark.clause("G4")


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def many(count) -> dict[str, Any]:
    return {f"p{index}": [1, 2] for index in range(count)}


def test_two_blocks_two_collectors(samples, record):
    first, second = leaves(samples, a=2), leaves(samples, b=3)
    with collector_of(first) as left, collector_of(second) as right:
        left.backward(first["a"] * first["a"])
        right.backward(second["b"] * second["b"] * second["b"])
        right.zero()
        collects(left.gradients, a=4)
        right.backward(second["b"] * second["b"] * second["b"])
    collects(left.gradients, a=4)
    collects(right.gradients, b=27)
    record("left", left.gradients, reason="small integers, exact in every dtype")
    record("right", right.gradients, reason="small integers, exact in every dtype")


def test_two_collectors_of_one_block_are_independent(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as outer:
        outer.backward(samples.operations.sum(own["a"]))
        with collector_of(own, "write") as inner:
            inner.backward(samples.operations.sum(own["a"] * 5.0))
            inner.zero()
            inner.backward(samples.operations.sum(own["a"] * 7.0))
        outer.backward(samples.operations.sum(own["a"]))
    collects(outer.gradients, a=[2, 2])
    collects(inner.gradients, a=[7, 7])


def test_one_loss_serves_two_collectors(samples):
    first, second = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4])
    with collector_of(first) as left, collector_of(second) as right:
        loss = samples.operations.sum(first["a"] * second["b"])
        left.backward(loss, retain_graph=True)
        right.backward(loss)
    collects(left.gradients, a=[3, 4])
    collects(right.gradients, b=[1, 2])


@pytest.mark.parametrize("outer_first", [True, False], ids=["outer-closes-first", "inner-closes-first"])
def test_collectors_close_in_any_order(samples, backend, outer_first):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    outer, inner = collector_of(own), collector_of(own)
    outer.__enter__()
    inner.__enter__()
    first, last = (outer, inner) if outer_first else (inner, outer)
    early = samples.operations.sum(own["a"] * own["a"])
    first.__exit__(None, None, None)
    assert backend.tape.is_recording()
    last.backward(early)
    last.backward(samples.operations.sum(own["a"] * own["a"]))
    assert last.usage.reached == ("a",)
    assert last.usage.unused == ("b",)
    _ = own["b"] * 2.0  # the uses of leaves are still told to the collector that is left
    assert last.usage.disconnected == ("b",)
    last.__exit__(None, None, None)
    collects(last.gradients, a=[4, 8])
    assert len(first.gradients) == 0


ACTION = st.sampled_from(["open", "backward", "backward", "zero", "close"])
PART = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3, unique=True)


@settings(max_examples=50)
@given(
    steps=st.lists(
        st.tuples(ACTION, PART, st.sampled_from(["write", "add"]), st.integers(0, 9), st.integers(1, 5)),
        min_size=3,
        max_size=14,
    ),
    closing=st.lists(st.integers(0, 9), min_size=14, max_size=14),
)
def test_nested_collectors_closing_in_any_order_are_each_alone(samples, backend, steps, closing):
    own = leaves(samples, a=[1, 2], b=[3, 4], c=[5, 6])
    running: list[Any] = []
    closed: list[Any] = []
    before = backend.tape.is_recording()

    def close(index):
        running[index][0].__exit__(None, None, None)
        closed.append(running.pop(index))

    try:
        for action, part, mode, index, factor in steps:
            if action == "open" or not running:
                collector = collector_of({name: own[name] for name in part}, mode)
                collector.__enter__()
                running.append((collector, part, mode, {}))
                continue
            collector, names, mode, wanted = running[index % len(running)]
            if action == "backward":
                total = samples.operations.sum(own[part[0]] * float(factor))
                for name in part[1:]:
                    total = total + samples.operations.sum(own[name] * float(factor))
                collector.backward(total)
                if mode == "write":
                    wanted.clear()
                for name in set(part) & set(names):
                    wanted[name] = wanted.get(name, 0) + f32([factor, factor])
            elif action == "zero":
                collector.zero()
                wanted.clear()
            else:
                close(index % len(running))
            for other, _, _, values in (*running, *closed):
                collects(other.gradients, **values)
    finally:  # also after a failure, which would otherwise make later tests fail
        for index in closing[: len(running)]:
            close(index % len(running))
    for other, _, _, values in closed:
        collects(other.gradients, **values)
    assert backend.tape.is_recording() == before
    assert all(value is None or not value.any() for value in native_gradients(backend, own).values())


def test_a_collector_of_a_part_beside_one_of_the_whole(samples):
    part = dense(samples, 3, 4)
    whole = samples.layer("sequential", layers=[part, samples.layer("tanh"), dense(samples, 4, 1, seed=3)])
    x = samples.tensor(array(5, 3))

    def loss():
        return samples.operations.mean(whole(x))

    with collector_of(whole) as alone:
        alone.backward(loss())
    with collector_of(whole) as outer, collector_of(part) as inner:
        value = loss()
        outer.backward(value, retain_graph=True)
        inner.backward(value)
        inner.zero()
    same_bits(gradients_of(outer), gradients_of(alone))
    assert len(inner.gradients) == 0


def test_other_leaves_are_counted_and_not_collected(samples, backend):
    own, foreign = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4], c=[5, 6])
    backend.tape.set_native_gradient(foreign["b"], samples.tensor(f32([7, 8])))
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * foreign["b"] * foreign["c"]))
        assert collector.usage.outside == 2
    collects(collector.gradients, a=[15, 24])
    found = native_gradients(backend, foreign)
    assert found["b"] is not None
    np.testing.assert_array_equal(found["b"], [7, 8])
    assert found["c"] is None or not found["c"].any()


def test_only_own_parameters_are_differentiated(samples, backend, monkeypatch):
    asked = []
    plain = backend.tape.vjp

    def counted(graph, cotangents, targets, *, retain, create):
        asked.append({id(target) for target in targets})
        return plain(graph, cotangents, targets, retain=retain, create=create)

    monkeypatch.setattr(backend.tape, "vjp", counted)
    own, foreign = leaves(samples, a=[1, 2], never=[1, 1]), leaves(samples, b=[3, 4])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * foreign["b"]))
    assert asked == [{id(own["a"])}]


def test_no_primitive_is_given_a_foreign_leaf(samples, backend, monkeypatch):
    own = leaves(samples, a=[1, 2], b=[1, 2])
    foreign = leaves(samples, **many(50))
    strangers = {id(tensor) for tensor in foreign.values()}
    touched: list[str] = []

    def watch_calls(module, name):
        plain = getattr(module, name)

        def counted(*args, **kwargs):
            flat = [*args, *kwargs.values()]
            flat += [item for arg in flat if isinstance(arg, list | tuple) for item in arg]
            touched.extend(name for arg in flat if id(arg) in strangers)
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for module in (backend.block, backend.arrays, backend.tape):
        for name, value in list(vars(module).items()):
            if not name.startswith("_") and callable(value) and not isinstance(value, type):
                watch_calls(module, name)
    # A control: the watch notices a foreign leaf that is given to a primitive.
    backend.arrays.shape(foreign["p0"])
    assert touched == ["shape"]
    touched.clear()
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * own["b"] * foreign["p1"]))
        collector.zero()
    assert touched == []


def lines_of_a_round(samples, block, loss):
    """Return how many lines of Python opening, a backward, zeroing and closing run; any loop over leaves adds to it."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        count += event == "line"
        return trace

    def one_round():
        with collector_of(block) as collector:
            collector.backward(loss())
            collector.zero()

    one_round()  # what is made once and kept is not counted
    before = sys.gettrace()
    collecting = gc.isenabled()
    gc.disable()  # callbacks of the garbage collector would be counted by chance
    sys.settrace(trace)
    try:
        one_round()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count


def test_the_cost_does_not_grow_with_other_leaves_alive(samples):
    own = leaves(samples, **many(4))
    block = unigrad.wrap(own)

    def loss():
        return samples.operations.sum(own["p0"] * own["p1"])

    alone = lines_of_a_round(samples, block, loss)
    others = [samples.leaf(f32([1, 2])) for _ in range(2000)]
    models = [unigrad.wrap(mlp(samples, 2, 3, 1, seed=seed)) for seed in range(20)]
    with collector_of(models[0]) as other:
        other.backward(samples.operations.sum(models[0](samples.tensor(f32([[1, 2]])))))
    assert lines_of_a_round(samples, block, loss) == alone
    assert len(others) == 2000


def test_the_cost_grows_at_most_in_proportion_to_own_parameters(samples):
    counts = []
    for size in (100, 200):
        own = leaves(samples, **many(size))
        block = unigrad.wrap(own)
        counts.append(lines_of_a_round(samples, block, lambda own=own: samples.operations.sum(own["p0"] * own["p1"])))
    assert counts[1] <= 2 * counts[0]

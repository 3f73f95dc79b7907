"""Clauses G1, G3, G5 and G11 as a property: any sequence of calls gives what a plain model in NumPy gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.errors import ArgumentError, GraphReleasedError
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.collecting import f32, leaves
from unigrad_conformance.suite.problems import to_numpy

NAMES = ("a", "b", "c")
VALUES: dict[str, Any] = {"a": [1.0, 2.0], "b": [3.0, -1.0], "c": [2.0, 5.0]}


@dataclass
class Value:
    """A tensor of the program and what the model knows of it: its nodes and its derivative by each leaf it depends on."""

    tensor: Any
    nodes: frozenset[int]
    slope: dict[str, Any]


@dataclass
class Program:
    """Tensors made from the leaves by linear steps, so that every gradient is a small integer and exact."""

    samples: Any
    own: dict[str, Any]
    values: list[Value] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    count: int = 0

    def __post_init__(self):
        for name in NAMES:
            self.values.append(Value(self.own[name], frozenset(), {name: f32([1, 1])}))

    def make(self, kind, left, right, factor):
        """Make a tensor of one or two earlier ones."""
        first = self.values[left % len(self.values)]
        second = self.values[right % len(self.values)]
        self.count += 1
        node = frozenset([self.count])
        if kind == "scale":
            slope = {name: value * factor for name, value in first.slope.items()}
            self.values.append(Value(first.tensor * float(factor), first.nodes | node, slope))
        elif kind == "shift":  # a graph that saves nothing: some frameworks do not notice that it was released
            self.values.append(Value(first.tensor + 1.0, first.nodes | node, dict(first.slope)))
        else:
            slope = dict(first.slope)
            for name, value in second.slope.items():
                slope[name] = slope.get(name, 0) + value
            self.values.append(Value(first.tensor + second.tensor, first.nodes | second.nodes | node, slope))

    def loss(self, index):
        """Return a value and the sum of its elements; a leaf gets a node by a product with one."""
        value = self.values[index % len(self.values)]
        tensor = value.tensor if value.nodes else value.tensor * 1.0
        return value, self.samples.operations.sum(tensor)


MAKE = st.tuples(
    st.just("make"), st.sampled_from(["scale", "shift", "add"]), st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)
)
# An index from the end finds the newest tensors, which are the deepest.
BACKWARD = st.tuples(st.just("backward"), st.integers(-4, 9), st.booleans())
ZERO = st.tuples(st.just("zero"))


def exact(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(to_numpy(found[name]), value, err_msg=name)


@pytest.mark.clause("G1", "G3", "G5", "G6")
@pytest.mark.parametrize("mode", ["write", "add"])
@settings(max_examples=60)
@given(actions=st.lists(st.one_of(MAKE, BACKWARD, MAKE, ZERO), min_size=4, max_size=24))
def test_any_sequence_is_the_plain_model(samples, backend, mode, actions):
    # Where an independent graph goes together with a released one, the refusal is declared and right.
    whole_tape = backend.spec.guarantees.get(Guarantee.INDEPENDENT_RELEASE, "kept") != "kept"
    own = leaves(samples, **VALUES)
    program = Program(samples, own)
    wanted: dict[str, Any] = {}
    released_once = False
    with unigrad.GradientCollector(own, mode, on_unused="ignore") as collector:
        for action, *details in actions:
            if action == "make":
                program.make(*details)
            elif action == "zero":
                collector.zero()
                wanted = {}
            else:
                index, retain = details
                value, loss = program.loss(index)
                if value.nodes & program.released:
                    with pytest.raises(GraphReleasedError):
                        collector.backward(loss, retain_graph=retain)
                else:
                    try:
                        collector.backward(loss, retain_graph=retain)
                    except GraphReleasedError:
                        assert whole_tape
                        assert released_once
                        continue
                    if not retain:
                        program.released |= value.nodes
                        released_once = True
                    if mode == "write":
                        wanted = dict(value.slope)
                    else:
                        wanted = {
                            name: wanted.get(name, 0) + value.slope.get(name, 0) for name in {*wanted, *value.slope}
                        }
            exact(collector.gradients, wanted)
    exact(collector.gradients, wanted)


WEIGHTS = st.sampled_from([None, 0, 1, 2, 3.5, 8])


@pytest.mark.clause("G11", "G1")
@settings(max_examples=60)
@given(
    actions=st.lists(
        st.one_of(st.tuples(st.sampled_from(NAMES), st.integers(1, 9), WEIGHTS), st.just("zero")),
        min_size=1,
        max_size=12,
    )
)
def test_any_sequence_of_weights_is_the_mean_so_far(samples, actions):
    own = leaves(samples, **VALUES)
    sums: dict[str, Any] = {}
    total, weighted = 0.0, None
    with unigrad.GradientCollector(own, "add", on_unused="ignore") as collector:
        for action in actions:
            if action == "zero":
                collector.zero()
                sums, total, weighted = {}, 0.0, None
            else:
                name, factor, weight = action
                loss = samples.operations.sum(own[name] * float(factor))
                if weighted is not None and weighted != (weight is not None):
                    with pytest.raises(ArgumentError, match="weight"):
                        collector.backward(loss, weight=weight)
                else:
                    collector.backward(loss, weight=weight)
                    weighted = weight is not None
                    total += weight or 0.0
                    if weight != 0:
                        sums[name] = sums.get(name, f32([0, 0])) + factor * (1.0 if weight is None else weight)
            if weighted and total == 0:
                with pytest.raises(ArgumentError, match="0"):
                    _ = collector.gradients
                continue
            assert sorted(collector.gradients) == sorted(sums)
            for name, value in sums.items():
                # Sums are exact; one rounding each for the reciprocal, the product and its division.
                np.testing.assert_allclose(
                    to_numpy(collector.gradients[name]), value / (total if weighted else 1.0), rtol=4 * 2.0**-23
                )

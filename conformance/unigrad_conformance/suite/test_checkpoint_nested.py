"""Checkpoint: regions nested in any way in a stack of layers give the plain run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, step, total

pytestmark = pytest.mark.needs(Capability.NESTED_CHECKPOINT)

WIDTH = 3


def _leaf(samples, kind, index):
    """Return one layer from ``WIDTH`` to ``WIDTH`` features."""
    return {
        "dense": lambda: dense(samples, WIDTH, WIDTH, seed=index),
        "tanh": lambda: samples.layer("tanh"),
        "dropout": lambda: samples.layer("dropout", rate=0.3),
        "norm": lambda: samples.layer("batch_norm", channels=WIDTH, momentum=0.1, epsilon=1e-5, affine=True),
    }[kind]()


def _build(samples, plan, checkpoint, counter):
    """Return the stack of a plan: a name of a layer, or ``(whether it is a region, plans)``."""
    if isinstance(plan, str):
        counter()
        return _leaf(samples, plan, counter.calls)
    wrapped, parts = plan
    stack = samples.layer("sequential", layers=[_build(samples, part, checkpoint, counter) for part in parts])
    return checkpoint(stack) if wrapped else stack


PLANS = st.recursive(
    st.sampled_from(["dense", "tanh", "dropout", "norm"]),
    lambda inner: st.tuples(st.booleans(), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=6,
)


@pytest.mark.clause("C5", "C1", "C2", "C3", "C13")
@settings(max_examples=40)
@given(plan=PLANS, backwards=st.integers(1, 2))
def test_any_nesting_of_regions_has_the_bits_of_the_plain_run(samples, plan, backwards):
    """Dense, tanh, dropout and batch normalization in nested containers, each container a region or not."""
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        model = _build(samples, (True, [(True, [plan]), "dense"]), checkpoint, Counted())
        block = unigrad.wrap(model).train()
        found.append(step(samples, block, block, array(4, WIDTH), backwards=backwards))
    same_bits(*found)


@pytest.mark.clause("C5", "C4")
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_innermost_function_runs_once_more_for_each_level_at_most(samples, depth):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    model = samples.model(forward, parameters={"w": array(3)})
    run = model
    for _ in range(depth):
        run = unigrad.checkpoint(samples.layer("sequential", layers=[run]))
    with unigrad.GradientCollector(model) as collector:
        loss = total(samples, run(samples.tensor(array(3, seed=1))))
        assert count.calls == 1
        collector.backward(loss)
    assert 2 <= count.calls <= depth + 1


@pytest.mark.clause("C5", "C6")
def test_nested_region_with_an_unused_output_reaches_what_the_plain_run_reaches(samples):
    operations = samples.operations
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        inner = samples.model(
            lambda self, x: (operations.tanh(x * self.a), operations.sin(x * self.b)),
            parameters={"a": array(3), "b": array(3, seed=1)},
        )
        outer = samples.model(lambda self, x: self.inner(x), layers={"inner": checkpoint(inner)})
        with unigrad.GradientCollector(outer, on_unused="ignore") as collector:
            y, _ = checkpoint(outer)(samples.tensor(array(3, seed=2)))
            collector.backward(operations.sum(y))
        assert list(collector.gradients) == ["inner.a"]
        found.append({"a": to_numpy(collector.gradients["inner.a"])})
    same_bits(*found)


@pytest.mark.clause("C5", "C8")
def test_mismatch_in_an_inner_region_is_noticed(samples):
    count = Counted()

    def forward(self, x):
        return samples.operations.tanh(x * self.w) * float(count())

    inner = samples.model(forward, parameters={"w": array(3)})
    outer = samples.layer("sequential", layers=[unigrad.checkpoint(inner)])
    with unigrad.GradientCollector(inner, on_unused="ignore") as collector:
        loss = total(samples, unigrad.checkpoint(outer)(samples.tensor(array(3, seed=1))))
        with pytest.raises(unigrad.RecomputeMismatchError):
            collector.backward(loss)


@pytest.mark.clause("C5", "C8")
def test_mismatch_that_only_the_inner_recompute_has_is_noticed(samples):
    """Forward and outer recompute agree; the third run, of the inner region, gives something else."""
    count = Counted()

    def forward(self, x):
        return samples.operations.tanh(x * self.w) * (2.0 if count() > 2 else 1.0)

    inner = samples.model(forward, parameters={"w": array(3)})
    outer = samples.model(
        lambda self, x: samples.operations.sin(self.inner(x)), layers={"inner": unigrad.checkpoint(inner)}
    )
    with unigrad.GradientCollector(inner, on_unused="ignore") as collector:
        loss = samples.operations.sum(unigrad.checkpoint(outer)(samples.tensor(array(3, seed=1))))
        try:
            collector.backward(loss)
        except unigrad.RecomputeMismatchError:
            return
    assert count.calls == 2, "a third run differed and nothing said so"
    y = array(3) * array(3, seed=1)
    expected = np.cos(np.tanh(y)) * (1 - np.tanh(y) ** 2) * array(3, seed=1)
    # A cosine, a tanh and four products in float32.
    np.testing.assert_allclose(to_numpy(collector.gradients["w"]), expected, rtol=4e-6)

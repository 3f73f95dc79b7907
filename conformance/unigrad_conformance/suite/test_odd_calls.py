"""Regions that look at the identity of their arguments or differentiate inside, and norms that are no numbers."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.collecting import collects, leaves
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy


@pytest.mark.clause("C5")
def test_a_tensor_given_twice_is_one_tensor_in_the_recompute(samples):
    def square_or_more(a, b):
        return a * b if a is b else a * b * samples.operations.exp(a)

    own = leaves(samples, w=[1, 2])
    run = unigrad.checkpoint(square_or_more, blocks=unigrad.wrap(own))
    with unigrad.GradientCollector(own) as collector:
        hidden = own["w"] * 2.0
        collector.backward(samples.operations.sum(run(hidden, hidden)))
    collects(collector.gradients, w=[8, 16])


@pytest.mark.clause("C5")
@pytest.mark.needs(Capability.CAPTURES)
def test_a_collector_inside_a_region(samples):
    """The step of an inner loop: a gradient is taken inside and its values are used."""
    found = []
    for checkpoint in (lambda call: call, unigrad.checkpoint):
        model = dense(samples, 3, 3)

        def call(x, model=model):
            hidden = samples.operations.tanh(model(x))
            with unigrad.GradientCollector(model) as inner:
                inner.backward(samples.operations.sum(hidden * hidden), retain_graph=True)
            return hidden * samples.operations.sum(inner.gradients["bias"])

        with unigrad.GradientCollector(model) as collector:
            out = checkpoint(call)(samples.tensor(array(5, 3)))
            collector.backward(samples.operations.sum(out * out))
        found.append(gradients_of(collector) | {"out": to_numpy(out)})
    same_bits(*found)


@pytest.mark.clause("G7")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_norm_that_is_no_number_leaves_no_gradient_as_if_clipped(samples, value):
    own = leaves(samples, a=[1, 2], b=[3])
    with unigrad.GradientCollector(own) as collector:
        total = samples.operations.sum
        collector.backward(total(own["a"] * float(value)) + total(own["b"] * 5.0))
        collector.clip_by_global_norm(1.0)
    clipped = {name: to_numpy(gradient) for name, gradient in collector.gradients.items()}
    assert np.isnan(clipped["a"]).all()
    # 5 times nan, or 5 times 1 / inf
    assert np.isnan(clipped["b"]).all() if np.isnan(value) else not clipped["b"].any()

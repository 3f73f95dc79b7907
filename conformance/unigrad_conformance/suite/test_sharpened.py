"""Tests that a mutant of the reference asked for: each finds a fault that no other test of its clause found."""

from __future__ import annotations

import gc

import pytest

import unigrad
from unigrad_conformance.suite.collecting import collects, leaves


@pytest.mark.clause("G0")
def test_leaving_drops_the_graph_of_a_watched_tensor(samples):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        hidden = own["a"] * own["a"]
        inner = hidden * hidden
        alive = samples.storage_alive(hidden)
        watched = collector.watch(inner, name="inner")
        collector.backward(samples.operations.sum(watched * watched), retain_graph=True)
        del hidden, inner, watched
    gc.collect()
    assert not alive()
    collects(collector.input_gradients, inner=[2, 32])

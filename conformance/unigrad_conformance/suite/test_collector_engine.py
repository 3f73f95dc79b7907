"""Clauses G13 and G19: the engine is named, and a compiled step works or is refused."""

from __future__ import annotations

import pytest

import unigrad
from unigrad.errors import ArgumentError, UnsupportedError
from unigrad_conformance.suite.collecting import collects, f32, leaves
from unigrad_conformance.suite.problems import dense


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.clause("G13")
def test_the_engine_is_named_while_open_and_after(samples):
    own = leaves(samples, a=[1, 2])
    collector = collector_of(own)
    assert collector.engine == ""
    with collector:
        named = collector.engine
        assert named
        collector.backward(samples.operations.sum(own["a"]))
        assert collector.engine == named
    assert collector.engine == named


@pytest.mark.clause("G13")
def test_a_plain_model_is_served_by_the_pure_engine(samples):
    model = dense(samples, 2, 1)
    with collector_of(model) as collector:
        assert collector.engine == "pure"
        collector.backward(samples.operations.sum(model(samples.tensor(f32([[1, 2]])))))
    assert set(collector.gradients) == {"weight", "bias"}


@pytest.mark.clause("G13")
def test_an_engine_that_cannot_serve_is_refused_at_entering(samples, backend, monkeypatch):
    own = leaves(samples, a=[1, 2])

    def refuse(model, structure):
        raise UnsupportedError("sharded")

    with monkeypatch.context() as patch:
        patch.setattr(backend.tape, "engine", refuse)
        with pytest.raises(UnsupportedError, match="sharded"), collector_of(own):
            raise AssertionError
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    collects(collector.gradients, a=[1, 1])


@pytest.mark.clause("G13", "B7")
def test_joined_blocks_of_two_engines_are_refused(samples, backend, monkeypatch):
    first, second = dense(samples, 2, 1), dense(samples, 2, 1)
    joined = unigrad.join(first=first, second=second)
    with monkeypatch.context() as patch:
        patch.setattr(backend.tape, "engine", lambda model, structure: "native" if model is first else "pure")
        with pytest.raises(ArgumentError, match=r"native.*pure"), collector_of(joined):
            raise AssertionError
    with collector_of(joined) as collector:
        assert collector.engine

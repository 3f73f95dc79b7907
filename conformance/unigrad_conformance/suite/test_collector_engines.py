"""Clause G13: what other clauses promise holds under every engine that a backend has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.errors import GraphReleasedError
from unigrad_conformance.suite.collecting import collects, f32, inputs_of, native_gradients, state_of
from unigrad_conformance.suite.problems import dense, gradients_of, mlp

X = f32([[1, 2], [3, 5]])
WEIGHT = {"weight": [[4, 7]], "bias": [2]}
"""Gradients of the sum of a dense layer's outputs for ``X``."""


def engines(samples: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield the name of each engine with the function that makes a model need it."""
    yield "pure", lambda model: model
    yield from getattr(samples, "engines", {}).items()


def collector_of(block: Any, accumulate: str = "write", **options: Any) -> unigrad.GradientCollector:
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **options)


def total(samples: Any, value: Any) -> Any:
    return samples.operations.sum(value)


def slots(backend: Any, parameters: Sequence[Any]) -> list[Any]:
    """Return what stands where the framework's own tools look, as lists."""
    found = native_gradients(backend, {str(index): tensor for index, tensor in enumerate(parameters)})
    return [None if value is None else value.tolist() for value in found.values()]


@pytest.mark.clause("G13", "G1", "G2", "G3")
def test_every_engine_is_said_and_accumulates_alike(samples):
    for name, need in engines(samples):
        for accumulate, factor in (("write", 1), ("add", 3)):
            model = need(dense(samples, 2, 1))
            with collector_of(model, accumulate) as collector:
                loss = total(samples, model(samples.tensor(X)))
                for retain in (True, True, False):
                    collector.backward(loss, retain_graph=retain)
                before = state_of(collector)
                with pytest.raises(GraphReleasedError):
                    collector.backward(loss)
                assert state_of(collector) == before, name
            assert collector.engine == name
            collects(collector.gradients, **{key: factor * np.array(value) for key, value in WEIGHT.items()})


@pytest.mark.clause("G13", "G4")
def test_no_engine_leaves_anything_where_native_tools_look(samples, backend):
    for name, need in engines(samples):
        model, other = need(dense(samples, 2, 1)), need(dense(samples, 1, 1))
        parameters = [*unigrad.wrap(model).parameters.values(), *unigrad.wrap(other).parameters.values()]
        for tensor in parameters[:3]:
            backend.tape.set_native_gradient(tensor, backend.arrays.zeros(tensor))
        before = slots(backend, parameters)
        with collector_of(model) as collector:
            collector.backward(total(samples, other(model(samples.tensor(X)))))
        assert collector.usage.outside == 2, name
        assert slots(backend, parameters) == before, name
        assert before.count(None) == 1


@pytest.mark.clause("G13", "G6", "R2")
def test_every_engine_knows_what_a_loss_depends_on(samples):
    for name, need in engines(samples):
        layers = {
            key: dense(samples, 2, 1, seed=seed) for seed, key in enumerate(("used", "dropped", "never", "frozen"))
        }

        def forward(self, x):
            self.dropped(x)
            return self.used(x) + self.frozen(x) + samples.operations.stop_gradient(self.dropped(x))

        model = need(samples.model(forward, layers=layers))
        block = unigrad.wrap(model).freeze("frozen")
        with collector_of(block) as collector:
            collector.backward(total(samples, block(samples.tensor(X))))
        usage = collector.usage
        assert set(collector.gradients) == {"used.weight", "used.bias"}, name
        assert usage.reached == ("used.weight", "used.bias")
        assert usage.disconnected == ("dropped.weight", "dropped.bias")
        assert usage.unused == ("never.weight", "never.bias")
        assert usage.frozen == ("frozen.weight", "frozen.bias")


@pytest.mark.clause("G13", "G9", "G11", "G10")
def test_every_engine_watches_and_weighs(samples):
    for name, need in engines(samples):
        model = need(dense(samples, 2, 1))
        with collector_of(model, "add") as collector:
            for rows in ([0, 1], [1, 2]):
                x = collector.watch(samples.tensor(X[slice(*rows)]), "x")
                hidden = collector.watch(x + x, "hidden")
                collector.backward([total(samples, model(hidden)), total(samples, hidden)], weight=1 + rows[0])
        # the mean over items: (1 * first + 2 * second) / 3; the input is doubled
        wanted = np.array([2 * X[0] + 2 * 2 * X[1]]) / 3
        found = gradients_of(collector)
        np.testing.assert_allclose(found["weight"], wanted, rtol=1e-6, err_msg=name)  # a product, a sum and a quotient
        np.testing.assert_array_equal(found["bias"], [1])
        assert set(inputs_of(collector)) == {"x", "hidden"}, name


@pytest.mark.clause("G13", "C1", "M1")
def test_regions_under_every_engine(samples):
    found = []
    for _, need in engines(samples):
        model = need(mlp(samples, 2, 3, 1, seed=4))
        rerun, parts = unigrad.checkpoint(model), unigrad.microbatch(model, 1)
        with collector_of(model, "add") as collector:
            for run in (rerun, parts):
                collector.backward(total(samples, run(samples.tensor(X))))
        found.append(gradients_of(collector))
    for other in found[1:]:
        assert list(other) == list(found[0])
        for name, value in other.items():  # sums of a few terms near 1, in another order
            np.testing.assert_allclose(value, found[0][name], rtol=1e-6, atol=1e-6, err_msg=name)

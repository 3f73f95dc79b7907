"""Checkpoint: layers built on their first call work; parameters created on each call are an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, build_and_compare, draws, total

LAZY = pytest.mark.needs(Capability.LAZY_LAYERS)


def _lazy(samples, *behind):
    layers = [samples.layer("lazy_dense", outputs=4, bias=True), samples.layer("tanh"), *behind]
    return samples.layer("sequential", layers=layers)


def _creating(samples, calls=None):
    """Return a model that makes a layer in its forward, at each call or once."""
    kept: list[Any] = []

    def forward(self, x):
        if calls is not None:
            calls()
        if calls is None or not kept:
            kept.append(samples.layer("dense", weight=array(2, 3, seed=5), bias=None))
        return samples.operations.tanh(kept[-1](x * self.w))

    return samples.model(forward, parameters={"w": array(3)})


@pytest.mark.clause("C7")
def test_layer_constructed_in_the_function_is_an_error_that_names_it(samples):
    block = unigrad.wrap(_creating(samples))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        with pytest.raises(unigrad.CreatedParameterError, match=r"weight|\(2, 3\)"):
            collector.backward(total(samples, unigrad.checkpoint(block)(samples.tensor(array(4, 3)))))
        assert list(collector.gradients) == []


@pytest.mark.clause("C7")
def test_layer_constructed_in_the_function_once_is_right(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_creating(samples, Counted()))
        with unigrad.GradientCollector(block) as collector:
            collector.backward(total(samples, checkpoint(block)(samples.tensor(array(4, 3)))))
        found.append(gradients_of(collector))
    same_bits(*found)


@LAZY
@pytest.mark.clause("C7", "B4", "C1", "C2")
def test_pending_layer_before_a_random_one_has_the_bits_of_the_plain_run(samples):
    def build():
        return _lazy(samples, samples.layer("dropout", rate=0.5), dense(samples, 4, 2))

    found = build_and_compare(samples, build, array(5, 3))
    assert "gradient of 0.weight" in found


@LAZY
@pytest.mark.clause("C7", "C3")
def test_building_run_moves_no_statistics(samples):
    def build():
        norm = samples.layer("batch_norm", channels=4, momentum=0.1, epsilon=1e-5, affine=True)
        return _lazy(samples, norm, samples.layer("lazy_dense", outputs=2, bias=False))

    build_and_compare(samples, build, array(5, 3))


@LAZY
@pytest.mark.clause("C7", "C3", "C2")
def test_building_run_leaves_custom_buffers_and_streams(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):

        def forward(self, x):
            samples.set_buffer(self, "count", self.count + 1)
            return samples.operations.dropout(self.inner(x), 0.5)

        block = unigrad.wrap(
            samples.model(
                forward,
                buffers={"count": np.array([0], "int64")},
                layers={"inner": samples.layer("lazy_dense", outputs=4, bias=True)},
            )
        )
        unigrad.seed(3)
        with unigrad.GradientCollector(block) as collector:
            y = checkpoint(block)(samples.tensor(array(5, 3)))
            collector.backward(total(samples, y))
            after = draws(samples)
        found.append({"y": to_numpy(y), "count": to_numpy(block.buffers["count"]), **after})
    assert found[1]["count"].tolist() == [1]
    same_bits(*found)


@LAZY
@pytest.mark.clause("C7", "R1", "B4")
def test_built_layer_is_registered_and_trains(samples):
    block = unigrad.wrap(_lazy(samples))
    run = unigrad.checkpoint(block)
    x = samples.tensor(array(5, 3))
    with unigrad.GradientCollector(block) as collector:
        assert list(collector.usage.pending) == ["0"]
        collector.backward(total(samples, run(x)))
        first = {name: id(tensor) for name, tensor in block.parameters.items()}
        assert not collector.usage.pending
        assert collector.usage.reached == ("0.weight", "0.bias")
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, run(x)))
    assert {name: id(tensor) for name, tensor in block.parameters.items()} == first, "parameters were created again"
    assert block.registered == ("0.weight", "0.bias")
    with unigrad.GradientCollector(block) as plain:
        plain.backward(total(samples, block(x)))
    same_bits(gradients_of(plain), gradients_of(collector))


@LAZY
@pytest.mark.clause("C7", "C5")
def test_pending_layer_under_no_grad_is_built_by_the_plain_call(samples):
    block = unigrad.wrap(_lazy(samples))
    with samples.no_grad():
        unigrad.checkpoint(block)(samples.tensor(array(5, 3)))
    assert block.pending == ()


@LAZY
@pytest.mark.clause("C7", "C11", "C3")
def test_failure_of_the_building_run_keeps_its_type_and_changes_nothing(samples):
    def forward(self, x):
        samples.set_buffer(self, "count", self.count + 1)
        raise LookupError("no such expert")

    block = unigrad.wrap(
        samples.model(
            forward,
            buffers={"count": np.array([0], "int64")},
            layers={"inner": samples.layer("lazy_dense", outputs=4, bias=True)},
        )
    )
    with unigrad.GradientCollector(block, on_unused="ignore"), pytest.raises(LookupError, match="no such expert"):
        unigrad.checkpoint(block)(samples.tensor(array(5, 3)))
    assert block.pending == ("inner",)
    assert to_numpy(block.buffers["count"]).tolist() == [0]


@LAZY
@pytest.mark.clause("C7", "B3")
def test_frozen_pending_layer_is_frozen_when_built_inside(samples):
    block = unigrad.wrap(_lazy(samples, dense(samples, 4, 2))).freeze("0")
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(total(samples, unigrad.checkpoint(block)(samples.tensor(array(5, 3)))))
    assert sorted(collector.gradients) == ["2.bias", "2.weight"]
    assert collector.usage.frozen == ("0.weight", "0.bias")


@LAZY
@pytest.mark.clause("C7", "C13", "B4")
def test_pending_native_facade_can_be_copied_and_built(samples, backend):
    run = unigrad.checkpoint(_lazy(samples))
    twin = backend.block.copy(run)
    for facade in (run, twin):
        block = unigrad.wrap(facade)
        assert block.pending == ("0",)
        with unigrad.GradientCollector(block) as collector:
            collector.backward(total(samples, facade(samples.tensor(array(5, 3)))))
        assert sorted(collector.gradients) == ["0.bias", "0.weight"]

"""Clause B3: what was unfrozen, or changed natively since, stays so when the model or the block changes."""

from __future__ import annotations

import copy
import gc

import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense

pytestmark = pytest.mark.clause("B3")


def body_and_head(samples):
    return samples.layer("sequential", layers=[dense(samples, 3, 3), dense(samples, 3, 2, seed=1)])


def reached(samples, model):
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        collector.backward(samples.operations.sum(model(samples.tensor(array(4, 3)))))
    return sorted(collector.gradients)


def test_a_block_made_anew_freezes_nothing_again(samples):
    model = body_and_head(samples)
    unigrad.wrap(model).freeze("*").unfreeze("1")
    gc.collect()
    assert reached(samples, model) == ["1.bias", "1.weight"]


def test_a_copy_is_frozen_as_the_original(samples):
    block = unigrad.wrap(body_and_head(samples)).freeze("*").unfreeze("1")
    assert reached(samples, copy.deepcopy(block)) == ["1.bias", "1.weight"]


def test_a_parameter_made_trainable_natively_stays_so(samples, backend):
    model = body_and_head(samples)
    block = unigrad.wrap(model).freeze("*")
    backend.block.set_trainable(block.parameters["1.bias"], True)
    del block
    gc.collect()
    assert reached(samples, model) == ["1.bias"]


@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_the_last_pattern_counts_for_what_is_created_later(samples):
    layers = [samples.layer("lazy_dense", outputs=3, bias=True), samples.layer("lazy_dense", outputs=2, bias=True)]
    model = samples.layer("sequential", layers=layers)
    block = unigrad.wrap(model).freeze("*").unfreeze("1")
    assert reached(samples, block) == ["1.bias", "1.weight"]


@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_a_layer_created_later_freezes_no_other_again(samples):
    layers = [dense(samples, 3, 3), samples.layer("lazy_dense", outputs=2, bias=True)]
    model = samples.layer("sequential", layers=layers)
    block = unigrad.wrap(model).freeze("0").unfreeze("0.bias")
    assert reached(samples, block) == ["0.bias", "1.bias", "1.weight"]

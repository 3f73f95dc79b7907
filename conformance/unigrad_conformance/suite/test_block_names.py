"""B1: parameters have structural, canonical, unique names; ties, roles and native names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.errors import ArgumentError
from unigrad_conformance.suite.block_problems import KINDS, branches, layer_of
from unigrad_conformance.suite.problems import array, dense, to_numpy

pytestmark = pytest.mark.clause("B1")

TREES = st.recursive(st.just("dense"), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=6)


def build(samples, tree):
    if tree == "dense":
        return dense(samples, 2, 2)
    return samples.layer("sequential", layers=[build(samples, child) for child in tree])


def paths(tree, prefix=""):
    if tree == "dense":
        return [f"{prefix}weight", f"{prefix}bias"]
    return [name for index, child in enumerate(tree) for name in paths(child, f"{prefix}{index}.")]


@settings(max_examples=15)
@given(tree=st.lists(TREES, min_size=1, max_size=3))
def test_names_are_the_paths_of_any_nesting(samples, tree):
    assert list(unigrad.wrap(build(samples, tree)).parameters) == paths(tree)


def test_names_of_a_second_model_are_the_same(samples, record):
    first, second = (list(unigrad.wrap(branches(samples)).parameters) for _ in range(2))
    assert (
        first == second == [f"{layer}.{leaf}" for layer in ("encoder", "left", "right") for leaf in ("weight", "bias")]
    )
    record("names", first)


@pytest.mark.parametrize("kind", KINDS)
def test_leaf_names_are_canonical(samples, record, kind):
    block = unigrad.wrap(layer_of(samples, kind))
    assert sorted(block.parameters) == sorted(KINDS[kind].parameters)
    assert set(KINDS[kind].buffers) <= set(block.buffers)
    record("names", list(block.parameters))


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_of_a_known_layer_has_its_role(samples, record, kind):
    block = unigrad.wrap(samples.layer("sequential", layers=[layer_of(samples, kind)]))
    assert set(block.roles.values()) == {KINDS[kind].role}
    assert list(block.roles) == list(block.parameters)
    record("roles", dict(block.roles))


def test_unknown_layers_keep_their_leaf_names_and_have_the_role_other(samples):
    model = samples.model(lambda self, x: x * self.gain + self.shift, parameters={"gain": array(3), "shift": array(3)})
    block = unigrad.wrap(model)
    assert list(block.parameters) == ["gain", "shift"]
    assert dict(block.roles) == {"gain": "other", "shift": "other"}


def test_native_names_are_told(samples):
    block = unigrad.wrap(samples.layer("sequential", layers=[dense(samples, 3, 2), layer_of(samples, "batch_norm")]))
    native = [block.native_name(name) for name in (*block.parameters, *block.buffers)]
    assert all(isinstance(name, str) and name for name in native)
    assert len(set(native)) == len(native)


def test_native_name_of_an_unknown_name_names_near_ones(samples):
    block = unigrad.wrap(branches(samples))
    with pytest.raises(ArgumentError, match=r"encoder\.weight"):
        block.native_name("encoder.wieght")


def test_parameters_are_the_native_objects(samples, backend):
    block = unigrad.wrap(dense(samples, 2, 2, bias=False))
    x = samples.tensor(array(1, 2))
    before = to_numpy(block(x))
    weight = block.parameters["weight"]
    backend.arrays.assign(weight, 2 * to_numpy(weight))
    # Doubling is exact, so the product doubles exactly.
    assert (to_numpy(block(x)) == 2 * before).all()
    assert block.parameters["weight"] is weight


def test_the_mapping_of_parameters_is_read_only(samples):
    parameters: Any = unigrad.wrap(dense(samples, 2, 2)).parameters
    with pytest.raises(TypeError):
        parameters["weight"] = parameters["bias"]
    with pytest.raises(TypeError):
        del parameters["weight"]


def test_a_layer_that_stands_twice_has_its_first_name(samples, record):
    layer = dense(samples, 2, 2)
    block = unigrad.wrap(samples.layer("sequential", layers=[layer, samples.layer("tanh"), layer]))
    assert list(block.parameters) == ["0.weight", "0.bias"]
    assert dict(block.aliases) == {"2.weight": "0.weight", "2.bias": "0.bias"}
    assert block.native_name("2.weight") == block.native_name("0.weight")
    record("aliases", dict(block.aliases))


def test_a_tied_parameter_has_one_name_and_an_alias(samples):
    table = samples.layer("embedding", weight=array(3, 2), padding_index=None)
    weight = unigrad.wrap(table).parameters["weight"]
    head = samples.model(lambda self, x: x, parameters={"weight": weight})
    block = unigrad.wrap(samples.model(lambda self, x: x, layers={"table": table, "head": head}))
    assert list(block.parameters) == ["table.weight"]
    assert dict(block.aliases) == {"head.weight": "table.weight"}
    assert block.parameters["table.weight"] is weight
    assert block.roles["table.weight"] == "embedding"


def test_one_model_has_one_block(samples):
    model = branches(samples)
    block = unigrad.wrap(model)
    assert unigrad.wrap(model) is block
    assert unigrad.wrap(block) is block
    assert block.native is model


def test_a_part_of_a_model_is_a_block_of_the_same_parameters(samples):
    model = branches(samples)
    whole, part = unigrad.wrap(model), unigrad.wrap(model.encoder)
    assert list(part.parameters) == ["weight", "bias"]
    assert part.parameters["weight"] is whole.parameters["encoder.weight"]


def test_repr_tells_what_the_block_holds(samples, backend):
    text = repr(unigrad.wrap(branches(samples)))
    assert backend.spec.name in text
    assert "6 parameters" in text

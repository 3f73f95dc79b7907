"""B7: join makes one block of several, names prefixed."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, StateMismatchError, UnsupportedError
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import branches, collect, norm_model, state_bits
from unigrad_conformance.suite.problems import array, dense, same_bits, to_numpy

pytestmark = pytest.mark.clause("B7")


def pair(samples):
    return dense(samples, 3, 4, seed=1), dense(samples, 4, 2, seed=2)


def joined(samples):
    encoder, decoder = pair(samples)
    return unigrad.join(encoder=encoder, decoder=decoder), lambda x: unigrad.wrap(decoder)(unigrad.wrap(encoder)(x))


NAMES = ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]


def test_names_are_prefixed_in_order(samples):
    block, _ = joined(samples)
    assert list(block.parameters) == NAMES
    assert set(block.roles.values()) == {"dense"}
    assert block.native_name("decoder.bias")


def test_parameters_are_those_of_the_parts(samples):
    encoder, decoder = pair(samples)
    block = unigrad.join(encoder=encoder, decoder=unigrad.wrap(decoder))
    assert block.parameters["encoder.weight"] is unigrad.wrap(encoder).parameters["weight"]


def test_gradients_are_those_of_the_parts(samples, record):
    block, run = joined(samples)
    ops = samples.operations
    x = samples.tensor(array(5, 3))
    collector = collect(block, lambda: ops.sum(run(x)))
    assert list(collector.gradients) == NAMES
    assert collector.usage.reached == tuple(NAMES)
    # each bias of the last layer has a gradient of one for each of the five samples
    assert to_numpy(collector.gradients["decoder.bias"]).tolist() == [5, 5]
    record("gradients", collector.gradients, terms=5, reason="sums over five samples")


def test_a_mapping_of_blocks_joins(samples):
    encoder, decoder = pair(samples)
    ops = samples.operations
    run = unigrad.wrap(decoder), unigrad.wrap(encoder)
    collector = collect(
        {"encoder": run[1], "decoder": run[0]}, lambda: ops.sum(run[0](run[1](samples.tensor(array(5, 3)))))
    )
    assert list(collector.gradients) == NAMES


def test_registered_belongs_to_the_parts(samples):
    encoder, decoder = pair(samples)
    block = unigrad.join(encoder=encoder, decoder=decoder)
    ops = samples.operations
    collect(block, lambda: ops.sum(unigrad.wrap(encoder)(samples.tensor(array(5, 3)))))
    assert block.registered == ("encoder.weight", "encoder.bias")
    assert unigrad.wrap(encoder).registered == ("weight", "bias")
    assert unigrad.wrap(decoder).registered == ()
    assert unigrad.join(decoder=decoder, encoder=encoder).registered == ("encoder.weight", "encoder.bias")


def test_a_shared_layer_has_one_name(samples):
    encoder, _ = pair(samples)
    block = unigrad.join(a=encoder, b=encoder)
    assert list(block.parameters) == ["a.weight", "a.bias"]
    assert dict(block.aliases) == {"b.weight": "a.weight", "b.bias": "a.bias"}


def test_a_tie_between_two_parts_has_one_gradient(samples):
    table = samples.layer("embedding", weight=array(3, 2), padding_index=None)
    weight = unigrad.wrap(table).parameters["weight"]
    head = samples.model(lambda self, x: x * self.weight, parameters={"weight": weight})
    block = unigrad.join(table=table, head=head)
    ops = samples.operations
    ids = samples.tensor(np.array([0, 2], "int64"))
    ones = samples.tensor(np.ones((3, 2), "float32"))
    collector = collect(block, lambda: ops.sum(unigrad.wrap(table)(ids)) + ops.sum(unigrad.wrap(head)(ones)))
    assert list(collector.gradients) == ["table.weight"]
    assert to_numpy(collector.gradients["table.weight"]).tolist() == [[2, 2], [1, 1], [2, 2]]
    assert unigrad.wrap(head).registered == ("weight",)


def test_buffers_and_modes_of_the_parts(samples):
    norm = norm_model(samples)
    block = unigrad.join(norm=norm, plain=dense(samples, 1, 1)).train()
    assert "norm.norm.running_mean" in block.buffers
    assert block.training is True
    assert unigrad.wrap(norm).training is True
    unigrad.wrap(norm)(samples.tensor(array(4, 1)))
    assert to_numpy(block.buffers["norm.norm.running_mean"]).tolist() != [0.0]
    block.eval()
    assert unigrad.wrap(norm).training is False
    assert block.training is False


def test_freezing_reaches_into_the_parts(samples):
    encoder, decoder = pair(samples)
    block = unigrad.join(encoder=encoder, decoder=decoder).freeze("encoder").freeze("*.bias")
    ops = samples.operations

    def loss():
        return ops.sum(unigrad.wrap(decoder)(unigrad.wrap(encoder)(samples.tensor(array(5, 3)))))

    assert list(collect(block, loss).gradients) == ["decoder.weight"]
    block.unfreeze("encoder.weight")
    assert list(collect(block, loss).gradients) == ["encoder.weight", "decoder.weight"]


def test_a_frozen_normalization_of_a_joined_block_is_held(samples):
    norm = norm_model(samples)
    unigrad.join(norm=norm, plain=dense(samples, 1, 1)).train().freeze("norm.*")
    before = state_bits(unigrad.wrap(norm))
    unigrad.wrap(norm)(samples.tensor(array(4, 1)))
    assert state_bits(unigrad.wrap(norm)) == before


def test_freezing_nothing_is_an_error(samples):
    block, _ = joined(samples)
    with pytest.raises(ArgumentError, match=r"encoder\.weight"):
        block.freeze("encodr.weight")
    with pytest.raises(ArgumentTypeError):
        block.unfreeze(None)


def test_state_moves_all_or_nothing(samples, tmp_path):
    block, _ = joined(samples)
    state = {name: values + 1 for name, values in block.state().items()}
    assert list(state) == NAMES
    block.load_state(state)
    same_bits(block.state(), state)
    before = state_bits(block)
    with pytest.raises(StateMismatchError, match=r"decoder\.bias"):
        block.load_state(
            {**{name: values + 1 for name, values in state.items()}, "decoder.bias": np.zeros(9, "float32")}
        )
    assert state_bits(block) == before
    block.save(tmp_path / "joined.safetensors")
    twin, _ = joined(samples)
    twin.load(tmp_path / "joined.safetensors")
    same_bits(twin.state(), state)


def test_joined_blocks_can_be_joined(samples):
    inner, _ = joined(samples)
    block = unigrad.join(net=inner, head=dense(samples, 2, 1))
    assert list(block.parameters) == [f"net.{name}" for name in NAMES] + ["head.weight", "head.bias"]
    block.freeze("net.encoder")
    assert not any(
        block.backend.block.trainable(block.parameters[f"net.encoder.{leaf}"]) for leaf in ("weight", "bias")
    )


def test_a_mapping_of_tensors_can_be_joined(samples):
    block = unigrad.join(scale={"w": samples.leaf(array(3))}, model=branches(samples))
    assert next(iter(block.parameters)) == "scale.w"


def test_a_joined_block_has_no_call(samples):
    block, _ = joined(samples)
    with pytest.raises(UnsupportedError, match="encoder, decoder"):
        block(samples.tensor(array(5, 3)))


def test_joining_nothing_or_no_blocks_is_an_error(samples):
    with pytest.raises(ArgumentError, match="at least one"):
        unigrad.join()
    with pytest.raises(ArgumentTypeError):
        unigrad.join(a=dense(samples, 2, 2), b=samples.leaf(array(2)))
    with pytest.raises(ArgumentTypeError):
        unigrad.join(a=dense(samples, 2, 2), b=None)


def test_prefixes_that_could_give_one_name_twice_are_refused(samples):
    layers = {"b": dense(samples, 2, 2)}
    outer, inner = unigrad.wrap(samples.model(lambda self, x: x, layers=layers)), unigrad.wrap(dense(samples, 2, 2))
    with pytest.raises(ArgumentError, match=r"'a\.b'.*'a'"):
        unigrad.wrap({"a": outer, "a.b": inner})
    assert len(unigrad.wrap({"a": outer, "ab": inner}).parameters) == 4


@pytest.mark.parametrize("prefix", [1, None, ""], ids=["number", "none", "empty"])
def test_prefixes_are_strings(samples, prefix):
    with pytest.raises(ArgumentTypeError, match="prefix"):
        unigrad.wrap({prefix: unigrad.wrap(dense(samples, 2, 2))})


@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_pending_layers_of_the_parts_are_named(samples):
    lazy = samples.layer("lazy_dense", outputs=2, bias=True)
    inner = samples.layer("sequential", layers=[lazy])
    block = unigrad.join(first=inner, second=dense(samples, 2, 2))
    assert list(block.pending) == ["first.0"]
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(unigrad.wrap(inner)(samples.tensor(array(1, 3)))))
    assert not block.pending
    assert collector.usage.reached == ("first.0.weight", "first.0.bias")
    assert block.registered == ("first.0.weight", "first.0.bias")

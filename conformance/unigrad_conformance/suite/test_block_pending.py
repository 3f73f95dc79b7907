"""B4: layers whose parameters do not exist yet are known by name, and what needs the parameters says so."""

from __future__ import annotations

import pytest

import unigrad
from unigrad.errors import NotBuiltError
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import collect
from unigrad_conformance.suite.problems import array, dense, to_numpy

pytestmark = [pytest.mark.clause("B4"), pytest.mark.needs(Capability.LAZY_LAYERS)]


def lazy(samples):
    """Return a native model: ``first`` lazy to 4, ``middle`` dense 4-4, ``last`` lazy to 2."""

    def forward(self, x):
        return self.last(self.middle(self.first(x)))

    return samples.model(
        forward,
        layers={
            "first": samples.layer("lazy_dense", outputs=4, bias=True),
            "middle": dense(samples, 4, 4),
            "last": samples.layer("lazy_dense", outputs=2, bias=False),
        },
    )


def test_pending_layers_are_named_until_they_are_built(samples, record):
    block = unigrad.wrap(lazy(samples))
    assert list(block.pending) == ["first", "last"]
    assert list(block.parameters) == ["middle.weight", "middle.bias"]
    assert not block.registered
    block(samples.tensor(array(5, 3)))
    assert not block.pending
    names = ["first.weight", "first.bias", "middle.weight", "middle.bias", "last.weight"]
    assert list(block.parameters) == names
    record("names", list(block.parameters))


def test_a_built_layer_is_an_ordinary_dense_layer(samples):
    block = unigrad.wrap(lazy(samples))
    block(samples.tensor(array(5, 3)))
    assert set(block.roles.values()) == {"dense"}
    assert {name: values.size for name, values in block.state().items()} == {
        "first.weight": 12,
        "first.bias": 4,
        "middle.weight": 16,
        "middle.bias": 4,
        "last.weight": 8,
    }


@pytest.mark.parametrize("what", ["state", "load_state", "save", "load"])
def test_state_of_a_pending_block_is_an_error_naming_its_layers(samples, tmp_path, what):
    block = unigrad.wrap(lazy(samples))
    middle = to_numpy(block.parameters["middle.weight"])
    action = {
        "state": block.state,
        "load_state": lambda: block.load_state({"middle.weight": array(4, 4, seed=7)}, strict=False),
        "save": lambda: block.save(tmp_path / "state.safetensors"),
        "load": lambda: block.load(tmp_path / "state.safetensors"),
    }[what]
    with pytest.raises(NotBuiltError, match=r"first.*last"):
        action()
    assert not list(tmp_path.iterdir())
    assert to_numpy(block.parameters["middle.weight"]).tobytes() == middle.tobytes()


def test_the_collector_that_builds_a_layer_collects_it(samples):
    block = unigrad.wrap(lazy(samples))
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(samples.tensor(array(5, 3)))))
    assert list(collector.gradients) == list(block.parameters)
    assert collector.usage.reached == tuple(block.parameters)
    assert block.registered == tuple(block.parameters)


def test_freezing_a_pending_layer_takes_effect_when_it_is_built(samples):
    block = unigrad.wrap(lazy(samples)).freeze("first")
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(samples.tensor(array(5, 3)))))
    assert collector.usage.frozen == ("first.weight", "first.bias")
    assert list(collector.gradients) == ["middle.weight", "middle.bias", "last.weight"]


@pytest.mark.clause("B3", "B4")
def test_a_pending_layer_is_frozen_by_the_call_that_builds_it(samples, backend):
    # Nobody looks at the block in between: its user may train it without a collector.
    block = unigrad.wrap(lazy(samples)).freeze("first")
    block(samples.tensor(array(5, 3)))
    tensors = {entry.name: entry.tensor for entry in backend.block.structure(block.inner, None).parameters}
    frozen = [name for name, tensor in tensors.items() if not backend.block.trainable(tensor)]
    assert frozen == ["first.weight", "first.bias"]


def test_unfreezing_a_pending_layer_before_it_is_built(samples):
    block = unigrad.wrap(lazy(samples)).freeze("first").freeze("last").unfreeze("first")
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block(samples.tensor(array(5, 3)))))
    assert collector.usage.frozen == ("last.weight",)


def test_repr_tells_that_layers_are_pending(samples):
    assert "2 pending" in repr(unigrad.wrap(lazy(samples)))

"""Cases of kind I: layers that are not built yet."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import unigrad
from unigrad.errors import NotBuiltError, StateMismatchError
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import state_bits
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.needs(Capability.LAZY_LAYERS)


def lazy(samples, outputs):
    return samples.layer("lazy_dense", outputs=outputs, bias=True)


def called_and_idle(samples, *, idle=True):
    """Return a native model with a layer ``a`` that is called and, unless told not to, ``u`` that is not."""

    def forward(self, x, use_idle=False):
        return self.u(x) if use_idle else self.a(x)

    layers = {"a": lazy(samples, 2)} | ({"u": lazy(samples, 2)} if idle else {})
    return samples.model(forward, layers=layers)


def built(samples, *, idle=True):
    block = unigrad.wrap(called_and_idle(samples, idle=idle))
    x = samples.tensor(array(1, 3))
    block(x)
    if idle:
        block(x, use_idle=True)
    return block


@pytest.mark.clause("B4", "B5")
@pytest.mark.case(72)
def test_72_a_model_with_a_layer_never_called_is_not_saved_with_a_hole(samples, tmp_path):
    block = unigrad.wrap(called_and_idle(samples))
    block(samples.tensor(array(1, 3)))
    assert block.pending == ("u",)
    with pytest.raises(NotBuiltError, match=r"\bu\b"):
        block.save(tmp_path / "state.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.clause("B5")
@pytest.mark.case(72)
def test_72_a_file_of_the_same_model_is_equal(samples, tmp_path):
    source, target = built(samples), built(samples)
    source.save(tmp_path / "state.safetensors")
    target.load(tmp_path / "state.safetensors")
    assert state_bits(target) == state_bits(source)


@pytest.mark.clause("B5")
@pytest.mark.case(72)
def test_72_a_layer_that_the_file_lacks_is_missing_and_untouched(samples, tmp_path):
    path = tmp_path / "state.safetensors"
    source, target = built(samples, idle=False), built(samples)
    source.save(path)
    before = state_bits(target)
    with pytest.raises(StateMismatchError, match=r"(?s)u\.weight: missing.*u\.bias: missing"):
        target.load(path)
    assert state_bits(target) == before
    report = target.load(path, strict=False)
    assert report.missing == ("u.weight", "u.bias")
    after = state_bits(target)
    assert (after["u.weight"], after["a.weight"]) == (before["u.weight"], state_bits(source)["a.weight"])


@pytest.mark.clause("B5")
@pytest.mark.case(72)
def test_72_a_layer_that_the_model_lacks_is_never_dropped_in_silence(samples, tmp_path):
    path = tmp_path / "state.safetensors"
    built(samples).save(path)
    absent = built(samples, idle=False)
    before = state_bits(absent)
    with pytest.raises(StateMismatchError, match=r"u\.weight: the block has no such name"):
        absent.load(path)
    assert state_bits(absent) == before
    assert set(absent.load(path, strict=False).unexpected) == {"u.weight", "u.bias"}
    pending = unigrad.wrap(called_and_idle(samples))
    pending(samples.tensor(array(1, 3)))
    held = to_numpy(pending.parameters["a.weight"])
    for strict in (True, False):
        with pytest.raises(NotBuiltError, match=r"\bu\b"):
            pending.load(path, strict=strict)
    assert to_numpy(pending.parameters["a.weight"]).tobytes() == held.tobytes()


@pytest.mark.clause("B4", "B5")
@pytest.mark.case(73)
def test_73_a_model_never_called_says_which_layers_are_not_built(samples, tmp_path):
    path = tmp_path / "state.safetensors"

    def net():
        return unigrad.wrap(
            samples.layer("sequential", layers=[lazy(samples, 2), samples.layer("tanh"), lazy(samples, 3)])
        )

    source, target = net(), net()
    x = samples.tensor(array(1, 4))
    source(x)
    assert sorted(values.size for values in source.state().values()) == [2, 3, 6, 8]
    source.save(path)
    with pytest.raises(NotBuiltError, match=r"\b0\b.*\b2\b"):
        target.load(path)
    assert target.pending == ("0", "2")
    target(x)
    target.load(path)
    assert to_numpy(target(x)).tobytes() == to_numpy(source(x)).tobytes()


@pytest.mark.clause("B3", "B4")
@pytest.mark.case(74)
def test_74_a_copy_of_an_unbuilt_block_builds_by_itself(samples):
    block = unigrad.wrap(samples.layer("sequential", layers=[lazy(samples, 2)]))
    twin = copy.deepcopy(block)
    assert twin.pending == block.pending == ("0",)
    block(samples.tensor(np.ones((1, 3), "float32")))
    assert twin.pending == ("0",)
    twin(samples.tensor(np.ones((1, 5), "float32")))
    assert block.state()["0.weight"].size == 2 * 3
    assert twin.state()["0.weight"].size == 2 * 5
    ops = samples.operations
    for one, width in ((block, 3), (twin, 5)):
        with unigrad.GradientCollector(one) as collector:
            collector.backward(ops.sum(one(samples.tensor(np.ones((1, width), "float32")))))
        assert list(collector.gradients) == ["0.weight", "0.bias"]

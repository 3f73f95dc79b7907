"""B3: the mode of a block, in which every call through it runs, and which an exception does not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.block_problems import norm_model
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.clause("B3")


def noisy(samples):
    """Return a native model in which dropout lies two layers deep."""
    inner = samples.layer("sequential", layers=[samples.layer("dropout", rate=0.5)])
    return samples.model(
        lambda self, x: self.inner(x) * self.one, layers={"inner": inner}, parameters={"one": np.ones(64, "float32")}
    )


def drops(run, samples):
    return bool((to_numpy(run(samples.tensor(np.ones(64, "float32")))) == 0).any())


WAYS = {
    "block": lambda block: block,
    "checkpoint-of-block": unigrad.checkpoint,
    "checkpoint-of-model": lambda block: unigrad.checkpoint(block.native),
    "checkpoint-of-function": lambda block: unigrad.checkpoint(lambda x: block(x), blocks=[block]),
    "microbatch-of-block": lambda block: unigrad.microbatch(block, 64),
    "microbatch-of-model": lambda block: unigrad.microbatch(block.native, 64),
}


@pytest.mark.parametrize("native", [True, False], ids=["training", "inference"])
def test_wrap_keeps_the_native_mode(samples, backend, native):
    model = noisy(samples)
    backend.block.set_training(model, native)
    told = backend.block.training(model)
    block = unigrad.wrap(model)
    assert block.training == told
    assert backend.block.training(model) == told
    assert drops(block, samples) == told


@pytest.mark.parametrize("way", WAYS)
def test_every_call_runs_in_the_chosen_mode(samples, way):
    block = unigrad.wrap(noisy(samples))
    run = WAYS[way](block)
    for training in (True, False, True):
        chosen = block.train() if training else block.eval()
        assert chosen is block
        assert block.training is training
        with unigrad.GradientCollector(block, on_unused="ignore"):
            assert drops(run, samples) is training


def test_the_chosen_mode_outlives_the_block_object(samples):
    model = noisy(samples)
    unigrad.wrap(model).eval()
    assert unigrad.wrap(model).training is False
    assert not drops(unigrad.wrap(model), samples)


def failing(samples):
    """Return a block in training mode with one frozen normalization, and a forward that fails on request."""
    frozen = norm_model(samples)
    unigrad.wrap(frozen).freeze()
    free = norm_model(samples)

    def forward(self, x, fail):
        x = self.free(self.frozen(x))
        if fail:
            raise ZeroDivisionError("the forward failed")
        return x

    return unigrad.wrap(samples.model(forward, layers={"frozen": frozen, "free": free}))


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_modes_are_as_before_after_a_call_and_after_an_exception(samples, backend, training):
    block = failing(samples)
    x = samples.tensor(array(4, 1))
    backend.block.set_training(block.native, not training)
    block.memory.training = None
    block.train() if training else block.eval()
    modes = backend.block.modes(block.native)
    block(x, False)
    assert backend.block.modes(block.native) == modes
    with pytest.raises(ZeroDivisionError, match="the forward failed"):
        block(x, True)
    assert backend.block.modes(block.native) == modes
    assert block.training is training


def test_a_frozen_buffer_is_back_after_an_exception(samples):
    def forward(self, x):
        samples.set_buffer(self, "count", self.count + 1)
        raise ZeroDivisionError

    block = unigrad.wrap(samples.model(forward, buffers={"count": np.zeros((), "float32")})).freeze()
    held = block.buffers["count"]
    with pytest.raises(ZeroDivisionError):
        block(samples.tensor(array(2)))
    assert block.buffers["count"] is held
    assert to_numpy(held) == 0


def test_a_call_passes_arguments_as_they_are(samples):
    seen: dict[str, Any] = {}

    def forward(self, x, *rest, flag=None, **more):
        seen.update(rest=rest, flag=flag, more=more)
        return {"out": x, "none": None, "several": (x, [x, 3])}

    block = unigrad.wrap(samples.model(forward, parameters={"gain": array(2)}))
    x = samples.tensor(array(2))
    out = block(x, 1, None, flag=False, extra="text")
    assert seen == {"rest": (1, None), "flag": False, "more": {"extra": "text"}}
    assert out["none"] is None
    assert out["several"][1][1] == 3

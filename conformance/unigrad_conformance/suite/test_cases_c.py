"""Real faults of kind C: the recompute of a checkpoint draws other random numbers than its forward."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, to_numpy
from unigrad_conformance.suite.regions import build_and_compare, step


@pytest.mark.case(22)
@pytest.mark.clause("C1", "C3", "C2")
def test_stack_without_any_seed_is_equal(samples, record):
    """Convolution, normalization, pooling, convolution; no random layer and no seed given by the user."""

    def build():
        layers = [
            samples.layer("conv2d", weight=array(3, 2, 3, 3), bias=array(3), stride=1, padding=1),
            samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True),
            samples.layer("max_pool2d", size=2),
            samples.layer("conv2d", weight=array(2, 3, 2, 2), bias=None, stride=1, padding=0),
        ]
        return samples.layer("sequential", layers=layers)

    found = build_and_compare(samples, build, array(2, 2, 6, 6))
    gradients = {name: value for name, value in found.items() if name.startswith("gradient")}
    assert sorted(gradients) == [
        "gradient of 0.bias",
        "gradient of 0.weight",
        "gradient of 1.bias",
        "gradient of 1.weight",
        "gradient of 3.weight",
        "gradient of input 0",
    ]
    scale = max(float(np.abs(value).max()) for value in gradients.values())
    reason = "sums over 2 * 6 * 6 places of chains through 18 and 12 terms; normalization cancels the bias' gradient"
    record("gradients", gradients, terms=72 + 18 + 12, scale=scale, reason=reason)


@pytest.mark.case(22)
@pytest.mark.clause("C7", "C1")
@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_weights_initialised_inside_are_drawn_once(samples):
    def build():
        layers = [samples.layer("lazy_dense", outputs=4, bias=True), samples.layer("tanh")]
        return samples.layer("sequential", layers=layers)

    found = build_and_compare(samples, build, np.ones((3, 2), "float32"))
    assert "gradient of 0.weight" in found


def _dropout_step(samples, checkpoint, size, seed):
    """Return gradient and output of dropout with rate 0.5 on 1 .. size."""
    block = unigrad.wrap(samples.layer("dropout", rate=0.5)).train()
    values = np.arange(1, size + 1, dtype="float32")
    unigrad.seed(seed)
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(values), name="x")
        y = checkpoint(block)(x)
        collector.backward(samples.operations.sum(y))
    return to_numpy(collector.input_gradients["x"]), to_numpy(y), values


@pytest.mark.case(23)
@pytest.mark.clause("C1", "C2")
def test_dropout_mask_of_the_backward_is_that_of_the_forward(samples):
    masks = []
    for seed in range(5):
        gradient, y, values = _dropout_step(samples, unigrad.checkpoint, 8, seed)
        assert (gradient * values).tolist() == y.tolist()
        plain, _, _ = _dropout_step(samples, lambda block: block, 8, seed)
        assert gradient.tolist() == plain.tolist()
        assert set(gradient.tolist()) <= {0.0, 2.0}
        masks.append(tuple(gradient.tolist()))
    assert len(set(masks)) > 1


@pytest.mark.case(23)
@pytest.mark.clause("C2")
def test_there_is_no_switch_that_gives_up_the_random_state(samples):
    block = unigrad.wrap(samples.layer("dropout", rate=0.5)).train()
    for name in ("preserve_rng_state", "preserve_random_state", "rng"):
        with pytest.raises(TypeError, match=name):
            unigrad.checkpoint(block, **{name: False})
    gradient, y, values = _dropout_step(samples, lambda one: unigrad.checkpoint(one, verify=False), 8, 0)
    assert (gradient * values).tolist() == y.tolist()


@pytest.mark.case(25)
@pytest.mark.clause("C1", "C2")
@pytest.mark.parametrize(
    "what",
    ["layer", "operation", pytest.param("own-seed", marks=pytest.mark.needs(Capability.OWN_GENERATORS))],
)
def test_random_layer_with_own_seed_and_raw_operation_agree(samples, what):
    operations = samples.operations
    values = np.arange(1, 17, dtype="float32")
    block = {
        "layer": lambda: unigrad.wrap(samples.layer("dropout", rate=0.5)),
        "operation": lambda: unigrad.wrap(samples.model(lambda self, x: operations.dropout(x, 0.5))),
        "own-seed": lambda: unigrad.wrap(
            samples.model(
                lambda self, x: x * operations.sign(samples.own_normal(self.own, (16,))), generators={"own": 7}
            )
        ),
    }[what]().train()
    run = unigrad.checkpoint(block)
    masks = []
    for _ in range(3):
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(samples.tensor(values), name="x")
            y = run(x)
            collector.backward(operations.sum(y))
        gradient = to_numpy(collector.input_gradients["x"])
        assert (gradient * values).tolist() == to_numpy(y).tolist()
        masks.append(tuple(gradient.tolist()))
    assert len(set(masks)) == 3, "the masks of different calls are frozen"


@pytest.mark.case(28)
@pytest.mark.clause("C1", "C2")
@pytest.mark.parametrize("noise", ["dropout", "normal"])
@pytest.mark.parametrize("chunks", [1, 4])
def test_forward_and_backward_use_the_same_numbers_however_the_batch_is_cut(samples, noise, chunks):
    """The one rule; equal draws for the whole batch and for its parts are not promised."""
    operations = samples.operations

    def forward(self, x):
        if noise == "dropout":
            return operations.dropout(x, 0.5)
        return x * operations.normal(to_numpy(x).shape)

    block = unigrad.wrap(samples.model(forward)).train()
    values = np.full((8, 3), 2, "float32")  # a power of two, so that the products are exact
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(values), name="x")
        parts = operations.split(x, chunks, 0) if chunks > 1 else [x]
        y = operations.concat([unigrad.checkpoint(block)(part) for part in parts], 0)
        collector.backward(operations.sum(y))
    assert (to_numpy(collector.input_gradients["x"]) * values).tolist() == to_numpy(y).tolist()


@pytest.mark.case(29)
@pytest.mark.clause("C1", "C2")
def test_masks_differ_between_steps_and_agree_in_each(samples):
    block = unigrad.wrap(samples.layer("dropout", rate=0.5)).train()
    found = [step(samples, block, unigrad.checkpoint(block), array(4, 8), seed=index) for index in range(3)]
    masks = [value["gradient of input 0"] != 0 for value in found]
    assert not any(np.array_equal(masks[0], mask) for mask in masks[1:])

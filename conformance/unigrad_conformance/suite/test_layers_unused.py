"""A convolutional model with one layer that is defined and never called: exactly its parameters are left out."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad import UnusedParameterWarning
from unigrad_conformance.suite import layer_formulas as formulas
from unigrad_conformance.suite.differences import STEP_ERROR, assert_near, central_differences
from unigrad_conformance.suite.problems import array, gradients_of, same_bits, to_numpy

pytestmark = pytest.mark.clause("R2", "R5", "G6")

SHAPES = {
    "conv1.weight": (1, 2, 3, 3),
    "conv1.bias": (2,),
    "conv2.weight": (2, 3, 2, 2),
    "conv2.bias": (3,),
    "conv3.weight": (3, 3, 2, 2),
    "conv3.bias": (3,),
    "fc1.weight": (5, 27),
    "fc1.bias": (5,),
    "fc2.weight": (3, 5),
    "fc2.bias": (3,),
}
UNUSED = ["conv3.weight", "conv3.bias"]
USED = [name for name in SHAPES if name not in UNUSED]
VALUES = {name: array(*shape, seed=40 + index) / np.float32(3) for index, (name, shape) in enumerate(SHAPES.items())}
X = array(2, 1, 4, 4, seed=60)


def build(samples):
    """Return the block: transposed convolutions, pooling, hardswish, flatten, dense; ``conv3`` is never called."""
    strides = {"conv1": 1, "conv2": 2, "conv3": 2}
    layers = {
        name: samples.layer(
            "conv_transpose2d",
            weight=VALUES[f"{name}.weight"],
            bias=VALUES[f"{name}.bias"],
            stride=stride,
            padding=0,
        )
        for name, stride in strides.items()
    }
    layers |= {
        name: samples.layer("dense", weight=VALUES[f"{name}.weight"], bias=VALUES[f"{name}.bias"])
        for name in ("fc1", "fc2")
    }
    layers |= {
        "pool": samples.layer("max_pool2d", size=2),
        "activation": samples.layer("hardswish"),
        "flatten": samples.layer("flatten"),
    }

    def forward(self, x):
        x = self.pool(self.activation(self.conv1(x)))  # (2, 2, 3, 3)
        x = self.pool(self.activation(self.conv2(x)))  # (2, 3, 3, 3)
        x = self.activation(self.fc1(self.flatten(x)))
        return self.fc2(x)

    return unigrad.wrap(samples.model(forward, layers=layers))


def formula(x, *values):
    """Return the same in NumPy; ``values`` in the order of the used names."""
    weights = dict(zip(USED, values, strict=True))
    for name, stride in (("conv1", 1), ("conv2", 2)):
        x = formulas.conv_transpose2d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], stride)
        x = formulas.max_pool2d(formulas.hardswish(x), 2)
    x = formulas.hardswish(formulas.dense(x.reshape(len(x), -1), weights["fc1.weight"], weights["fc1.bias"]))
    return formulas.dense(x, weights["fc2.weight"], weights["fc2.bias"])


def step(samples, block, call=None, **options):
    """Return output, loss weights, gradients and usage of one step."""
    weights = array(2, 3, seed=61)
    with unigrad.GradientCollector(block, **options) as collector:
        y = (call or block)(samples.tensor(X))
        collector.backward(samples.operations.sum(y * samples.tensor(weights)))
    return to_numpy(y), weights, gradients_of(collector), collector.usage


@pytest.mark.clause("R3")
def test_exactly_the_layer_that_is_never_called_is_unused(samples, record):
    block = build(samples)
    assert sorted(block.parameters) == sorted(SHAPES)
    with pytest.warns(UnusedParameterWarning) as caught:
        _, _, gradients, usage = step(samples, block)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert [name for name in SHAPES if name in message] == UNUSED
    assert sorted(usage.unused) == sorted(UNUSED)
    assert sorted(usage.reached) == sorted(USED)
    assert (usage.disconnected, usage.frozen, usage.pending, usage.outside) == ((), (), (), 0)
    assert sorted(gradients) == sorted(USED)
    record("unused", set(usage.unused))
    record("reached", set(usage.reached))


@pytest.mark.clause("X1", "X4")
def test_the_eight_others_have_the_gradients_of_the_formula(samples, record):
    y, weights, gradients, _ = step(samples, build(samples), on_unused="ignore")
    exact = {"x": X, **{name: VALUES[name] for name in USED}}
    exact = {name: value.astype(np.float64) for name, value in exact.items()}
    expected = formula(*exact.values())
    slopes = central_differences(formula, exact, weights.astype(np.float64))
    # The longest way: sums of 9, 8, 27 and 5 products forward; the same backward, summed over 2 images of 36 places.
    terms, reason = 180, "sums of 9, 8, 27 and 5 products, there and back, over 2 images of 36 places"
    assert_near(y, expected, terms, what="output")
    record("output", y, terms=terms, reason=reason)
    for name in USED:
        assert_near(gradients[name], slopes[name], terms, floor=STEP_ERROR, what=name)
        record(f"gradient of {name}", gradients[name], terms=terms, reason=reason)


@pytest.mark.clause("R4")
def test_an_optimizer_step_leaves_it_where_it_is(samples):
    block = build(samples)
    optimizer = unigrad.Optimizer(block, samples.sgd(0.1, momentum=0.9, decay=0.1))
    for _ in range(2):
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            collector.backward(samples.operations.sum(block(samples.tensor(X))))
            collector.apply(optimizer)
    state = block.state()
    same_bits({name: state[name] for name in UNUSED}, {name: VALUES[name] for name in UNUSED})
    assert all((state[name] != VALUES[name]).any() for name in USED)


@pytest.mark.clause("C6", "M1")
@pytest.mark.parametrize("how", ["checkpoint", "microbatch"])
def test_recomputed_or_in_parts_it_is_the_same_layer(samples, how):
    block = build(samples)
    call = unigrad.checkpoint(block) if how == "checkpoint" else unigrad.microbatch(block, 1)
    y, _, gradients, usage = step(samples, block, call, on_unused="ignore")
    plain, _, expected, _ = step(samples, block, on_unused="ignore")
    assert sorted(usage.unused) == sorted(UNUSED)
    assert sorted(gradients) == sorted(USED)
    for name, value in {"output": plain, **expected}.items():
        # Two images one by one or together: the sums above in another order.
        assert_near({"output": y, **gradients}[name], value.astype(np.float64), 180, what=name)

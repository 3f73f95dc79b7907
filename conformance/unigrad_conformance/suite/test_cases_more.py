"""Real faults of kinds C and L that need no compiler and no transfer: a fixed seed, and a stack of recurrent layers."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite import layer_formulas as formulas
from unigrad_conformance.suite.differences import STEP_ERROR, assert_near, central_differences
from unigrad_conformance.suite.problems import array, to_numpy


def _seeded(samples):
    """Return the block of a layer that multiplies by noise from its own generator, seed 7."""

    def forward(self, x):
        return x * samples.own_normal(self.own, to_numpy(x).shape)

    return unigrad.wrap(samples.model(forward, generators={"own": 7}))


@pytest.mark.case(26)
@pytest.mark.clause("C2", "D3")
@pytest.mark.needs(Capability.OWN_GENERATORS)
@pytest.mark.parametrize("backwards", [0, 1, 2], ids=["forward-only", "one-backward", "two-backwards"])
def test_a_fixed_seed_gives_the_same_numbers_however_the_layer_is_called(samples, backwards):
    """Two layers of one seed: the n-th call draws the same, also with collectors, other shapes and recomputes between."""
    first, second = _seeded(samples), _seeded(samples)
    run = unigrad.checkpoint(second)
    drawn = []
    for width in (4, 6, 4):
        ones = samples.tensor(np.ones((2, width), "float32"))
        plain = to_numpy(first(ones))
        with unigrad.GradientCollector(second, accumulate="add", parameters=False) as collector:
            y = run(collector.watch(ones, name="x"))
            loss = samples.operations.sum(y)
            for index in range(backwards):
                collector.backward(loss, retain_graph=index < backwards - 1)
        assert to_numpy(y).tobytes() == plain.tobytes()
        if backwards:
            assert (to_numpy(collector.input_gradients["x"]) == backwards * plain).all()
        drawn.append(plain)
    assert drawn[0].tobytes() != drawn[2].tobytes(), "the numbers are frozen"


def _recurrent(samples, features, width, kind, seed, dtype):
    """Return a native recurrent layer and its values, in the order of the formula."""
    rows = 4 * width if kind == "lstm" else width
    shapes = ((rows, features), (rows, width), (rows,), (rows,))
    values = [array(*shape, seed=seed + index, dtype=dtype) / 2 for index, shape in enumerate(shapes)]
    if kind == "lstm":
        names = ("input_weight", "hidden_weight", "input_bias", "hidden_bias")
        return samples.layer("lstm", **dict(zip(names, values, strict=True))), values
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")

    def forward(self, x):
        ops = samples.operations
        batch, steps, _ = to_numpy(x).shape
        hidden = samples.tensor(np.zeros((batch, width), dtype))
        outputs = []
        for step in range(steps):
            here = ops.matmul(ops.index(x, (slice(None), step)), ops.transpose(self.weight_ih_l0, (1, 0)))
            before = ops.matmul(hidden, ops.transpose(self.weight_hh_l0, (1, 0)))
            hidden = ops.tanh(here + self.bias_ih_l0 + before + self.bias_hh_l0)
            outputs.append(ops.reshape(hidden, (batch, 1, width)))
        return ops.concat(outputs, 1)

    return samples.model(forward, parameters=dict(zip(names, values, strict=True))), values


def _simple_recurrence(x, weight_ih, weight_hh, bias_ih, bias_hh):
    hidden = np.zeros((len(x), weight_hh.shape[1]))
    outputs = []
    for step in range(x.shape[1]):
        hidden = np.tanh(x[:, step] @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh)
        outputs.append(hidden)
    return np.stack(outputs, axis=1)


@pytest.mark.case(99)
@pytest.mark.clause("X3", "X1", "X4")
@pytest.mark.dtypes("float32", "float64")
def test_a_stack_of_recurrent_layers_read_at_its_last_state(samples, record, dtype):
    """Recurrent 3-2, LSTM 2-2, LSTM 2-2, dense 2-1 on the last state; each of the two biases has the whole gradient."""
    made = [
        _recurrent(samples, 3, 2, "plain", 10, dtype),
        _recurrent(samples, 2, 2, "lstm", 20, dtype),
        _recurrent(samples, 2, 2, "lstm", 30, dtype),
    ]
    dense = [array(1, 2, seed=40, dtype=dtype), array(1, seed=41, dtype=dtype)]
    layers = {f"layer{index}": layer for index, (layer, _) in enumerate(made)}
    layers["head"] = samples.layer("dense", weight=dense[0], bias=dense[1])

    def forward(self, x):
        for name in ("layer0", "layer1", "layer2"):
            x = getattr(self, name)(x)
        return self.head(samples.operations.index(x, (slice(None), -1)))

    block = unigrad.wrap(samples.model(forward, layers=layers))
    x = array(2, 3, 3, seed=50, dtype=dtype)
    names = list(block.parameters)
    values = [value for _, own in made for value in own] + dense
    assert [to_numpy(block.parameters[name]).tolist() for name in names] == [value.tolist() for value in values]

    def formula(x, *values):
        for index, function in enumerate((_simple_recurrence, formulas.lstm, formulas.lstm)):
            x = function(x, *values[4 * index : 4 * index + 4])
        return formulas.dense(x[:, -1], *values[12:])

    slopes = central_differences(formula, {"x": x, **dict(zip(names, values, strict=True))}, np.ones((2, 1)))
    with unigrad.GradientCollector(block) as collector:
        y = block(collector.watch(samples.tensor(x), name="x"))
        collector.backward(samples.operations.sum(y))
    found = {**collector.gradients, **collector.input_gradients}
    # About 25 roundings for each of three steps of three layers, there and back.
    terms, reason = 240, "three layers of three steps, there and back, about 25 roundings each"
    scale = max(float(np.abs(slope).max()) for slope in slopes.values())
    assert sorted(found) == sorted(slopes)
    for name, slope in slopes.items():
        assert_near(to_numpy(found[name]), slope, terms, scale=scale, floor=STEP_ERROR, what=f"gradient of {name}")
        # The case asks for four digits of each gradient by itself, however small it is.
        np.testing.assert_allclose(to_numpy(found[name]), slope, rtol=1e-4, atol=1e-7, err_msg=name)
    for index in (1, 2):
        biases = [to_numpy(found[f"layer{index}.bias_{part}_l0"]) for part in ("ih", "hh")]
        # The same sum of two samples and three steps; its order is the framework's.
        assert_near(biases[0], biases[1], 6, what=f"biases of layer {index}")
    record("gradients", found, terms=terms, scale=scale, reason=reason)

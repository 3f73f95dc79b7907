"""Every kind of layer agrees with its formula, value, gradients and buffers, and with every other backend (X1, X3)."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad.samples import LAYER_KINDS
from unigrad_conformance.suite import layer_formulas as formulas
from unigrad_conformance.suite.differences import STEP_ERROR, assert_near, central_differences
from unigrad_conformance.suite.layer_table import LAYER_CASES
from unigrad_conformance.suite.problems import array, dense, same_bits, to_numpy

pytestmark = pytest.mark.clause("X3", "X1")

# Tested below by themselves.
OTHERS = {"embedding", "lazy_dense", "attention", "sequential"}


def test_the_table_holds_every_kind():
    assert {case.kind for case in LAYER_CASES} | OTHERS == set(LAYER_KINDS)


def check(samples, record, block, x, formula, parameters, terms, reason, watch=True):
    """Compare outputs and all gradients of a block with its formula, and record them."""
    exact = {"x": x.astype(np.float64) if watch else x}
    exact |= {name: value.astype(np.float64) for name, value in parameters.items()}
    expected = np.asarray(formula(*exact.values()))
    weights = array(*expected.shape, seed=50).astype(x.dtype if watch else "float32")
    slopes = central_differences(formula, exact, weights.astype(np.float64))
    with unigrad.GradientCollector(block) as collector:
        tensor = samples.tensor(x)
        y = block(collector.watch(tensor, name="x") if watch else tensor)
        collector.backward(samples.operations.sum(y * samples.tensor(weights)))
    found = {**collector.gradients, **collector.input_gradients}
    assert sorted(found) == sorted(slopes)
    size = max(float(np.abs(expected).max()), 1.0)
    assert_near(to_numpy(y), expected, terms, scale=size, what="output")
    record("output", y, terms=terms, scale=size, reason=reason)
    for name, slope in slopes.items():
        scale = max(float(np.abs(slope).max()), float(np.abs(weights).max()))
        assert_near(to_numpy(found[name]), slope, terms, scale=scale, floor=STEP_ERROR, what=f"gradient of {name}")
        record(f"gradient of {name}", found[name], terms=terms, scale=scale, reason=reason)


@pytest.mark.clause("X4", "G9")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in LAYER_CASES])
def test_output_and_gradients(samples, record, case):
    block = unigrad.wrap(samples.layer(case.kind, **case.config))
    (block.train if case.training else block.eval)()
    assert list(block.parameters) == list(case.parameters)
    for name, value in case.parameters.items():
        if case.kind in ("batch_norm", "layer_norm"):  # made with ones and zeros
            samples.change(block.parameters[name], value)
        same_bits({name: to_numpy(block.parameters[name])}, {name: value})
    check(samples, record, block, case.x, case.formula, case.parameters, case.terms, case.reason)


@pytest.mark.clause("X4")
@pytest.mark.dtypes("float64")
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id) for case in LAYER_CASES if case.kind not in ("batch_norm", "layer_norm")]
)
def test_in_double_precision(samples, record, case, dtype):
    double = {name: value.astype(dtype) for name, value in case.config.items() if isinstance(value, np.ndarray)}
    block = unigrad.wrap(samples.layer(case.kind, **{**case.config, **double}))
    (block.train if case.training else block.eval)()
    values = {name: value.astype(dtype) for name, value in case.parameters.items()}
    check(samples, record, block, case.x.astype(dtype), case.formula, values, case.terms, case.reason)


@pytest.mark.clause("G10")
@pytest.mark.parametrize("padding", [None, 1], ids=["plain", "padding-row"])
def test_embedding(samples, record, padding):
    weight = array(4, 3, seed=30)
    block = unigrad.wrap(samples.layer("embedding", weight=weight, padding_index=padding))
    ids = np.array([[0, 2, 2], [1, 1, 0]])
    with unigrad.GradientCollector(block) as collector:
        y = block(samples.tensor(ids))
        weights = array(2, 3, 3, seed=31)
        collector.backward(samples.operations.sum(y * samples.tensor(weights)))
    expected = np.zeros((4, 3))
    np.add.at(expected, ids, weights.astype(np.float64))
    if padding is not None:
        expected[padding] = 0
    same_bits({"y": to_numpy(y)}, {"y": formulas.embedding(ids, weight)})
    # Each row is used at most twice: one addition.
    assert_near(to_numpy(collector.gradients["weight"]), expected, 1)
    record("gradient", collector.gradients["weight"], terms=1, reason="at most two terms a row")


@pytest.mark.clause("B4")
@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_a_layer_built_by_its_first_call_is_dense(samples, record):
    block = unigrad.wrap(samples.layer("lazy_dense", outputs=3, bias=True))
    block(samples.tensor(array(5, 4)))
    values = {"weight": array(3, 4, seed=32), "bias": array(3, seed=33)}
    for name, value in values.items():
        samples.change(block.parameters[name], value)
    check(samples, record, block, array(5, 4, seed=34), formulas.dense, values, 10, "sums of 4 products and 5 samples")


def test_attention(samples, record):
    features, heads = 4, 2
    block = unigrad.wrap(samples.layer("attention", features=features, heads=heads, seed=5))
    # The values that the sample is to have: normal numbers over the root of the features, in the order of the parameters.
    numbers = np.random.default_rng(5)
    shapes = {
        "in_proj_weight": (3 * features, features),
        "in_proj_bias": (3 * features,),
        "out_proj.weight": (features, features),
        "out_proj.bias": (features,),
    }
    values = {
        name: (numbers.standard_normal(shape) / np.sqrt(features)).astype("float32") for name, shape in shapes.items()
    }
    same_bits({name: to_numpy(value) for name, value in block.parameters.items()}, values)
    check(
        samples,
        record,
        block,
        array(2, 3, 4, seed=35),
        lambda *arguments: formulas.attention(heads, *arguments),
        values,
        60,
        "three products of 4, a softmax of 3, and the same backward over 6 places",
    )


def test_sequential_calls_its_layers_in_order(samples):
    layers = [dense(samples, 3, 4, seed=1), samples.layer("tanh"), dense(samples, 4, 2, seed=2)]
    block = unigrad.wrap(samples.layer("sequential", layers=layers))
    assert list(block.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    x = samples.tensor(array(5, 3))
    same_bits({"y": to_numpy(block(x))}, {"y": to_numpy(layers[2](layers[1](layers[0](x))))})


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_dropout_layer_drops_in_training(samples, rate):
    block = unigrad.wrap(samples.layer("dropout", rate=rate)).train()
    found = to_numpy(block(samples.tensor(np.ones((40, 25), "float32"))))
    # 1,000 draws: more than five standard deviations.
    assert abs((found == 0).mean() - rate) < 0.08


@pytest.mark.clause("B2", "X2")
def test_running_statistics_follow_the_batch(samples, record):
    x = array(6, 3, seed=36)
    block = unigrad.wrap(samples.layer("batch_norm", channels=3, momentum=0.3, epsilon=1e-5, affine=True)).train()
    block(samples.tensor(x))
    buffers = {name: to_numpy(value) for name, value in block.buffers.items()}
    exact = x.astype(np.float64)
    unbiased = samples.conventions["running_variance"] == "unbiased"
    # Means of 6 values and two products.
    assert_near(buffers["running_mean"], 0.3 * exact.mean(0), 10, scale=1.0)
    assert_near(buffers["running_var"], 0.7 + 0.3 * exact.var(0, ddof=int(unbiased)), 10, scale=2.0)
    record("running mean", buffers["running_mean"], terms=10, scale=1.0, reason="means of 6 values")
    # With the same convention everywhere: the variance that was added, times (n - 1) / n where it was unbiased.
    added = (buffers["running_var"] - np.float32(0.7)) * np.float32(5 / 6 if unbiased else 1)
    record("biased variance added", added, terms=20, scale=2.0, reason="variances of 6 values, and a difference")

"""Faults of kinds L and M that samples can state without a transfer: layouts, gate orders and conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.samples import NoSampleError
from unigrad_conformance.suite.problems import gradients_of, to_numpy

pytestmark = pytest.mark.clause("X3", "X1")

# The values of the cases are given to six decimals.
DECIMALS: dict[str, Any] = {"rtol": 0, "atol": 2e-6}


def f32(*values):
    """Return a float32 array."""
    return np.array(values, "float32")


def run(block, samples, x, loss=None):
    """Return output and parameter gradients of the sum of the output."""
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        y = block(samples.tensor(x))
        collector.backward(samples.operations.sum(y if loss is None else loss(y)))
    return to_numpy(y), gradients_of(collector)


@pytest.mark.case(90)
def test_flatten_after_images_reads_channels_first(samples):
    x = np.arange(8, dtype="float32").reshape(1, 2, 2, 2)
    layers = [samples.layer("flatten"), samples.layer("dense", weight=f32(range(1, 9)), bias=None)]
    y, gradients = run(unigrad.wrap(samples.layer("sequential", layers=layers)), samples, x)
    assert y.tolist() == [[168.0]]
    assert gradients["1.weight"].tolist() == [list(range(8))]


@pytest.mark.case(92)
def test_transposed_convolution_is_in_by_out(samples):
    layer = samples.layer(
        "conv_transpose2d", weight=f32([1, 2], [3, 4])[:, :, None, None], bias=None, stride=1, padding=0
    )
    y, gradients = run(unigrad.wrap(layer), samples, f32(1, 10).reshape(1, 2, 1, 1))
    assert y.ravel().tolist() == [31.0, 42.0]
    assert gradients["weight"].reshape(2, 2).tolist() == [[1.0, 1.0], [10.0, 10.0]]


@pytest.mark.case(93)
@pytest.mark.parametrize(
    ("padding", "expected"), [(0, [1, 10, 102, 20, 203, 30, 300]), (1, [10, 102, 20, 203, 30])], ids=["uncut", "cut"]
)
def test_transposed_convolution_with_stride_two(samples, padding, expected):
    # One row of a kernel of three: the rows above and below only see zeros.
    kernel = np.zeros((1, 1, 3, 3), "float32")
    kernel[0, 0, 1] = [1, 10, 100]
    layer = samples.layer("conv_transpose2d", weight=kernel, bias=None, stride=2, padding=padding)
    y, _ = run(unigrad.wrap(layer), samples, f32(1, 2, 3).reshape(1, 1, 1, 3))
    assert y[0, 0, 1 - padding].tolist() == expected


@pytest.mark.case(94)
def test_dense_is_out_by_in_and_a_table_is_never_transposed(samples):
    values = f32([1, 2], [3, 4])
    dense = samples.layer("dense", weight=values, bias=None)
    assert to_numpy(dense(samples.tensor(f32([1, 10])))).tolist() == [[21.0, 43.0]]
    turned = samples.layer("dense", weight=np.ascontiguousarray(values.T), bias=None)
    assert to_numpy(turned(samples.tensor(f32([1, 10])))).tolist() == [[31.0, 42.0]]
    table = samples.layer("embedding", weight=values, padding_index=None)
    assert to_numpy(table(samples.tensor(np.array([1])))).tolist() == [[3.0, 4.0]]


@pytest.mark.clause("B1")
@pytest.mark.case(95)
def test_lstm_gates_are_i_f_g_o(samples, record):
    layer = samples.layer(
        "lstm",
        input_weight=f32([0.1], [0.2], [0.3], [0.4]),
        hidden_weight=f32([0.5], [0.6], [0.7], [0.8]),
        input_bias=f32(0.01, 0.02, 0.03, 0.04),
        hidden_bias=f32(0.1, 0.2, 0.3, 0.4),
    )
    y, gradients = run(unigrad.wrap(layer), samples, f32([[1], [2]]))
    np.testing.assert_allclose(y.ravel(), [0.208711, 0.478152], **DECIMALS)
    expected = {
        "weight_ih_l0": [0.352987, 0.069785, 0.663646, 0.265333],
        "weight_hh_l0": [0.020533, 0.007283, 0.024322, 0.019631],
        "bias_ih_l0": [0.254607, 0.034893, 0.547112, 0.171275],
        "bias_hh_l0": [0.254607, 0.034893, 0.547112, 0.171275],
    }
    assert sorted(gradients) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(gradients[name].ravel(), value, **DECIMALS, err_msg=name)
    record("outputs", y, terms=20, reason="two steps of about 10 roundings")
    record("gradients", gradients, terms=40, scale=1.0, reason="two steps of about 10 roundings, there and back")


@pytest.mark.clause("B1")
@pytest.mark.case(96)
def test_gru_gates_are_r_z_n_with_the_reset_after_the_product(samples, record):
    layer = samples.layer(
        "gru",
        input_weight=f32([0.1], [0.2], [0.3]),
        hidden_weight=f32([0.5], [0.6], [0.7]),
        input_bias=f32(0.01, 0.02, 0.03),
        hidden_bias=f32(0.1, 0.2, 0.3),
    )
    y, gradients = run(unigrad.wrap(layer), samples, f32([[1], [2]]))
    np.testing.assert_allclose(y.ravel(), [0.181891, 0.353527], **DECIMALS)
    record("outputs", y, terms=20, reason="two steps of about 10 roundings")
    record("gradients", gradients, terms=40, scale=1.0, reason="two steps of about 10 roundings, there and back")


def norm(samples, *, momentum=0.1, epsilon=1e-5):
    """Return the block of a batch normalization of one channel."""
    return unigrad.wrap(samples.layer("batch_norm", channels=1, momentum=momentum, epsilon=epsilon, affine=True))


def set_buffers(block, **values):
    """Set running statistics of one channel."""
    block.load_state({name: f32(value) for name, value in values.items()}, strict=False)


@pytest.mark.case(98)
def test_the_four_vectors_of_batch_normalization(samples):
    block = norm(samples).eval()
    set_buffers(block, weight=1, bias=0, running_mean=0.5, running_var=4)
    # (2.5 - 0.5) / sqrt(4 + 1e-5) = 0.99999875; float32 has steps of 6e-8 there.
    np.testing.assert_allclose(to_numpy(block(samples.tensor(f32([2.5])))), [[0.9999988]], rtol=0, atol=2e-7)


@pytest.mark.clause("B2")
@pytest.mark.case(100)
@pytest.mark.parametrize(("momentum", "mean"), [(0.01, 0.02), (0.1, 0.2)])
def test_momentum_is_the_weight_of_the_new_value(samples, momentum, mean):
    block = norm(samples, momentum=momentum).train()
    block(samples.tensor(f32([1], [3])))
    np.testing.assert_allclose(to_numpy(block.buffers["running_mean"]), [mean], **DECIMALS)


@pytest.mark.case(101)
@pytest.mark.parametrize(("epsilon", "expected"), [(1e-5, 1.906925), (1e-3, 0.603023)])
def test_epsilon_travels_with_the_layer(samples, record, epsilon, expected):
    block = norm(samples, epsilon=epsilon).eval()
    set_buffers(block, running_mean=0, running_var=1e-4)
    y = to_numpy(block(samples.tensor(f32([0.02]))))
    np.testing.assert_allclose(y, [[expected]], **DECIMALS)
    record("output", y, terms=4, reason="a sum, a root and a quotient")


@pytest.mark.clause("B2", "X2")
@pytest.mark.case(102)
@pytest.mark.parametrize(
    ("batch", "unbiased", "biased"), [([1, 3], 1.1, 1.0), ([1, 2, 6], 1.6, 1.366667)], ids=["two", "three"]
)
def test_the_running_variance_follows_the_stated_convention(samples, record, batch, unbiased, biased):
    convention = samples.conventions.get("running_variance")
    if convention is None:
        raise NoSampleError("samples.conventions does not say which 'running_variance' is kept")
    assert convention in ("unbiased", "biased")
    block = norm(samples).train()
    block(samples.tensor(f32(*([value] for value in batch))))
    found = to_numpy(block.buffers["running_var"])
    np.testing.assert_allclose(found, [unbiased if convention == "unbiased" else biased], **DECIMALS)
    # Two conventions, both stated: a difference between backends is flagged, not failed.
    record("running variance", found, terms=8, reason="a variance of 3 values", choice=True)
    count = len(batch)
    shrunk = 0.9 + (found - np.float32(0.9)) * ((count - 1) / count if convention == "unbiased" else 1)
    record("biased running variance", shrunk.astype("float32"), terms=8, reason="the same, brought to one convention")


def padded(samples, x, before, after):
    """Return images with zero columns and rows put before and after."""
    ops = samples.operations
    for axis in (2, 3):
        shape = list(to_numpy(x).shape)
        parts = []
        for width in (before, after):
            shape[axis] = width
            parts.append([samples.tensor(np.zeros(shape, "float32"))] if width else [])
        x = ops.concat([*parts[0], x, *parts[1]], axis)
    return x


@pytest.mark.case(104)
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(0, 1, [[45, 39], [66, 50]]), (1, 1, [[10, 24], [51, 90]])],
    ids=["same", "padding-one"],
)
def test_padding_of_a_strided_convolution_is_explicit(samples, before, after, expected):
    x = samples.tensor(np.arange(16, dtype="float32").reshape(1, 1, 4, 4))
    kernel = np.ones((1, 1, 3, 3), "float32")
    layer = samples.layer("conv2d", weight=kernel, bias=None, stride=2, padding=0)
    assert to_numpy(layer(padded(samples, x, before, after)))[0, 0].tolist() == expected
    if before == after:
        layer = samples.layer("conv2d", weight=kernel, bias=None, stride=2, padding=before)
        assert to_numpy(layer(x))[0, 0].tolist() == expected


@pytest.mark.case(104)
@pytest.mark.parametrize(("before", "expected"), [(0, [14, 26, 17]), (1, [8, 20, 32])], ids=["same", "padding-one"])
def test_padding_of_a_strided_row(samples, before, expected):
    row = np.zeros((1, 1, 1, 7), "float32")
    row[..., before : before + 6] = range(1, 7)
    layer = samples.layer("conv2d", weight=f32([[[1, 2, 3]]])[None, 0], bias=None, stride=2, padding=0)
    assert to_numpy(layer(samples.tensor(row))).ravel().tolist() == expected


@pytest.mark.case(105)
@pytest.mark.parametrize(("rate", "scaled"), [(0.1, 4.444444), (0.25, 5.333333)])
def test_the_rate_of_dropout_is_what_is_dropped_and_training_scales(samples, rate, scaled):
    block = unigrad.wrap(samples.layer("dropout", rate=rate)).train()
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(np.full((8, 50), 4, "float32")), name="x")
        y = block(x)
        collector.backward(samples.operations.sum(y))
    found, gradient = to_numpy(y), to_numpy(collector.input_gradients["x"])
    kept = found != 0
    # 400 draws: more than five standard deviations.
    assert abs(kept.mean() - (1 - rate)) < 0.15
    np.testing.assert_allclose(found[kept], scaled, **DECIMALS)
    np.testing.assert_allclose(gradient[kept], 1 / (1 - rate), **DECIMALS)
    assert not gradient[~kept].any()
    block.eval()
    assert to_numpy(block(samples.tensor(f32([4, 4])))).tolist() == [[4.0, 4.0]]

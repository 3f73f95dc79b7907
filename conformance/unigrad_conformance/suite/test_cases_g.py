"""Real faults of kind G: mixed precision, and the order of accumulating, unscaling and clipping."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

MIXED = pytest.mark.needs(Capability.MIXED_PRECISION)


def _dense(samples, weight):
    return samples.layer("dense", weight=np.array(weight, "float32"), bias=None)


@MIXED
@pytest.mark.case(55)
@pytest.mark.clause("C9")
@pytest.mark.parametrize(("x", "loss_value", "slope"), [(2, 360448, 2400), (300, 8.1e9, None)], ids=["small", "large"])
def test_precision_of_the_forward_is_that_of_the_recompute(samples, backend, x, loss_value, slope):
    """Products of 300 * 300 = 90000 overflow in float16, so that a recompute in it would give infinity."""
    seen = []

    def forward(self, x):
        y = self.dense(x)
        seen.append((backend.arrays.dtype(y), to_numpy(y).astype("float32").item()))
        return y * y

    block = unigrad.wrap(samples.model(forward, layers={"dense": _dense(samples, [[300]])}))
    with unigrad.GradientCollector(block) as collector:
        with samples.mixed_precision("bfloat16"):
            loss = samples.operations.sum(unigrad.checkpoint(block)(samples.tensor(np.array([[x]], "float32"))))
        collector.backward(loss)
    assert [dtype for dtype, _ in seen] == ["bfloat16", "bfloat16"]
    assert seen[0] == seen[1]
    assert seen[0][1] == {2: 600, 300: 90112}[x]
    gradient = to_numpy(collector.gradients["dense.weight"])
    assert gradient.dtype == np.float32
    assert np.isfinite(gradient).all()
    # bfloat16 has 8 significant bits.
    np.testing.assert_allclose(to_numpy(loss).astype("float64"), loss_value, rtol=2**-7)
    if slope is not None:
        assert to_numpy(loss).astype("float64") == loss_value
        assert gradient.item() == slope


@MIXED
@pytest.mark.case(56)
@pytest.mark.clause("C9", "C1")
@pytest.mark.parametrize("outside", [False, True], ids=["inside-only", "nested"])
def test_precision_contexts_opened_inside_the_region(samples, backend, outside):
    found, seen = [], []

    def forward(self, x):
        y = self.first(x)
        with samples.mixed_precision("bfloat16"):
            z = self.second(samples.operations.tanh(y))
        seen.append((backend.arrays.dtype(y), backend.arrays.dtype(z)))
        return z

    for checkpoint in (lambda block: block, unigrad.checkpoint):
        layers = {"first": dense(samples, 3, 4), "second": dense(samples, 4, 2, seed=1)}
        block = unigrad.wrap(samples.model(forward, layers=layers))
        with unigrad.GradientCollector(block) as collector:
            x = samples.tensor(array(5, 3))
            if outside:
                with samples.mixed_precision("bfloat16"):
                    y = checkpoint(block)(x)
            else:
                y = checkpoint(block)(x)
            collector.backward(samples.operations.sum(y))
        found.append(gradients_of(collector))
    assert seen == [("bfloat16" if outside else "float32", "bfloat16")] * 3
    same_bits(*found)


@MIXED
@pytest.mark.case(57)
@pytest.mark.clause("C9", "C5")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpoint"])
def test_weight_used_with_gradients_off_first(samples, checkpointed):
    def forward(self, x):
        with samples.no_grad():
            a = self.dense(x)
        return self.dense(x) * a

    block = unigrad.wrap(samples.model(forward, layers={"dense": _dense(samples, [[1, 2], [3, 4]])}))
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(np.array([[1, 1]], "float32")), name="x")
        with samples.mixed_precision("bfloat16"):
            y = (unigrad.checkpoint(block) if checkpointed else block)(x)
        collector.backward(samples.operations.sum(y))
    assert to_numpy(collector.gradients["dense.weight"]).tolist() == [[3, 3], [7, 7]]
    assert to_numpy(collector.input_gradients["x"]).tolist() == [[24, 34]]


@MIXED
@pytest.mark.case(58)
@pytest.mark.clause("C9", "G12")
def test_gradients_outside_the_context_have_the_dtype_of_their_tensors(samples, backend):
    """The context of the forward does not leak into what comes after the recompute."""
    block = unigrad.wrap(_dense(samples, [[1, 2], [3, 4]]))
    dtypes = []
    for run in (block, unigrad.checkpoint(block)):
        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(samples.tensor(np.array([[1, 1]], "float32")), name="x")
            with samples.mixed_precision("bfloat16"):
                y = run(x)
            collector.backward(samples.operations.sum(y))
            after = block(samples.tensor(np.array([[1, 1]], "float32")))
        found = (collector.gradients["weight"], collector.input_gradients["x"], after)
        dtypes.append([backend.arrays.dtype(tensor) for tensor in found])
    assert dtypes == [["float32"] * 3] * 2


def _two_parts(samples, factor=1.0):
    """Yield losses with the gradients [3, 0] and [0, 4], times a factor, of one parameter."""
    block = unigrad.wrap(
        samples.model(lambda self, c: samples.operations.sum(self.w * c), parameters={"w": np.ones(2, "float32")})
    )
    return block, [samples.tensor(np.array(part, "float32") * np.float32(factor)) for part in ([3, 0], [0, 4])]


@pytest.mark.case(60)
@pytest.mark.clause("G18", "G1", "G7")
def test_clipping_follows_accumulation(samples, record):
    block, parts = _two_parts(samples)
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        for part in parts:
            collector.backward(block(part))
        collector.clip_by_global_norm(1.0)
    gradient = to_numpy(collector.gradients["w"])
    np.testing.assert_allclose(gradient, [0.6, 0.8], rtol=1e-5)
    record("clipped", gradient, terms=4, reason="a norm of two terms and one product")


@pytest.mark.case(61)
@pytest.mark.clause("G18", "G1", "G7")
def test_unscaling_follows_accumulation_and_precedes_clipping(samples):
    block, parts = _two_parts(samples, factor=2.0**15)
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        for part in parts:
            collector.backward(block(part))
        collector.scale(2.0**-15)
        collector.clip_by_global_norm(1.0)
    np.testing.assert_allclose(to_numpy(collector.gradients["w"]), [0.6, 0.8], rtol=1e-5)


@MIXED
@pytest.mark.case(61)
@pytest.mark.clause("G12", "C9")
def test_scaled_gradient_is_unscaled_in_the_dtype_of_the_parameter(samples):
    """A gradient of 1e-8 passes float16 only when scaled; unscaled in float16 it would be 0."""
    block = unigrad.wrap(_dense(samples, [[1]]))
    found = {}
    for scale in (1.0, 2.0**15):
        with unigrad.GradientCollector(block, accumulate="add") as collector:
            with samples.mixed_precision("float16"):
                y = unigrad.checkpoint(block)(samples.tensor(np.array([[1]], "float32")))
            loss = samples.operations.sum(samples.operations.cast(y, "float32")) * (1e-8 * scale)
            collector.backward(loss)
            collector.scale(1 / scale)
        found[scale] = to_numpy(collector.gradients["weight"])
    assert found[1.0].item() == 0
    assert found[2.0**15].dtype == np.float32
    np.testing.assert_allclose(found[2.0**15].item(), 9.997e-9, rtol=1e-3)


@MIXED
@pytest.mark.case(62)
@pytest.mark.clause("C9", "G12", "G1")
def test_accumulation_under_mixed_precision(samples):
    found = {}
    for mixed in (False, True):
        block = unigrad.wrap(dense(samples, 4, 2))
        run = unigrad.checkpoint(block)
        with unigrad.GradientCollector(block, accumulate="add") as collector:
            for index in range(2):
                x = samples.tensor(array(3, 4, seed=index))
                if mixed:
                    with samples.mixed_precision("float16"):
                        y = run(x)
                else:
                    y = run(x)
                collector.backward(samples.operations.sum(samples.operations.cast(y, "float32")))
        assert sorted(collector.gradients) == ["bias", "weight"]
        found[mixed] = gradients_of(collector)
    for name, value in found[False].items():
        assert found[True][name].dtype == np.float32
        np.testing.assert_allclose(found[True][name], value, rtol=1e-3, atol=1e-3 * np.abs(value).max())


@pytest.mark.case(63)
@pytest.mark.clause("C9")
@pytest.mark.dtypes("float16", "bfloat16", "float32", "float64")
def test_input_of_every_dtype_gets_its_gradient(samples, backend, dtype):
    def forward(self, x, ids):
        return samples.operations.sum(x * x), ids

    block = unigrad.wrap(samples.model(forward))
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(np.array([1, 2], "float32"), dtype), name="x")
        loss, ids = unigrad.checkpoint(block)(x, samples.tensor(np.array([0, 1])))
        collector.backward(loss)
    gradient = collector.input_gradients["x"]
    assert backend.arrays.dtype(gradient) == dtype
    assert to_numpy(gradient).astype("float64").tolist() == [2, 4]
    assert list(collector.input_gradients) == ["x"]
    assert to_numpy(ids).tolist() == [0, 1]


@pytest.mark.case(63)
@pytest.mark.clause("C9", "G9")
def test_integer_input_has_no_gradient(samples):
    block = unigrad.wrap(samples.model(lambda self, x: x))
    with unigrad.GradientCollector(block, parameters=False) as collector, pytest.raises(TypeError, match="floating"):
        collector.watch(samples.tensor(np.array([1, 2])), name="ids")

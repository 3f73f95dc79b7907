"""Real faults of kind E: what a checkpoint connects and what it loses."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import dense, gradients_of, to_numpy
from unigrad_conformance.suite.regions import Counted

DATA = np.array([[1, 2], [3, 5]], "float32")


def _dense(samples, weight, bias=None):
    weight = np.array(weight, "float32")
    return samples.layer("dense", weight=weight, bias=None if bias is None else np.array(bias, "float32"))


def _square_sum(samples, y):
    return samples.operations.sum(y * y)


@pytest.mark.case(35)
@pytest.mark.clause("C5", "C6")
@pytest.mark.parametrize("behind", [False, True], ids=["alone", "before-a-plain-layer"])
def test_parameters_count_when_the_input_needs_no_gradient(samples, record, behind):
    layer = _dense(samples, [[1, -1]], [0])
    layers = [unigrad.checkpoint(layer)] + ([_dense(samples, [[1]], [0])] if behind else [])
    block = unigrad.wrap(samples.layer("sequential", layers=layers))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unigrad.GradientCollector(block) as collector:
            collector.backward(_square_sum(samples, block(samples.tensor(DATA))))
    assert to_numpy(collector.gradients["0.weight"]).tolist() == [[-14, -24]]
    assert to_numpy(collector.gradients["0.bias"]).tolist() == [-6]
    record("gradients", collector.gradients, reason="small integers are exact")


@pytest.mark.case(35)
@pytest.mark.clause("C5")
def test_region_without_anything_trainable_is_plain(samples, backend):
    block = unigrad.wrap(_dense(samples, [[1, -1]], [0])).freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unigrad.GradientCollector(block, on_unused="ignore"):
            y = unigrad.checkpoint(block)(samples.tensor(DATA))
    assert to_numpy(y).tolist() == [[-1], [-2]]
    assert not backend.arrays.requires_gradient(y)


@pytest.mark.case(36)
@pytest.mark.clause("C5", "C6", "B3")
def test_frozen_layer_before_a_checkpoint(samples):
    layers = [_dense(samples, [[2]]), unigrad.checkpoint(_dense(samples, [[3]]))]
    block = unigrad.wrap(samples.layer("sequential", layers=layers)).freeze("0")
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(np.array([[1]], "float32")))))
    assert {name: value.tolist() for name, value in gradients_of(collector).items()} == {"1.weight": [[2]]}


@pytest.mark.case(37)
@pytest.mark.clause("C5", "C4")
@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("off", [False, True], ids=["recording", "gradients-off"])
def test_evaluation_warns_of_nothing(samples, backend, training, off):
    count = Counted()

    def forward(self, x):
        count()
        return self.dense(x)

    block = unigrad.wrap(samples.model(forward, layers={"dense": _dense(samples, [[1, -1]], [0])}))
    block.train() if training else block.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if off:
            with samples.no_grad():
                y = unigrad.checkpoint(block)(samples.tensor(DATA))
        else:
            y = unigrad.checkpoint(block)(samples.tensor(DATA))
    assert count.calls == 1
    assert to_numpy(y).tolist() == [[-1], [-2]]
    if off:
        assert not backend.arrays.requires_gradient(y)


@pytest.mark.case(38)
@pytest.mark.clause("C5", "C1")
def test_chain_of_checkpoints_on_data(samples):
    layers = [unigrad.checkpoint(_dense(samples, [[weight]])) for weight in (1, 2, 3, 4)]
    block = unigrad.wrap(samples.layer("sequential", layers=layers))
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(np.array([[1]], "float32")))))
    assert [value.item() for value in gradients_of(collector).values()] == [24, 12, 8, 6]


@pytest.mark.case(39)
@pytest.mark.clause("C5", "C6")
def test_marks_inside_are_those_of_the_plain_run(samples, backend):
    """Which tensors need a gradient, asked inside, is the same in the plain run, the forward and the recompute."""
    marks = []

    def forward(self, x):
        marks.append((backend.arrays.requires_gradient(self.w), backend.arrays.requires_gradient(x)))
        return samples.operations.sum(self.w * x)

    block = unigrad.wrap(samples.model(forward, parameters={"w": np.array([3, 4], "float32")}))
    for run in (block, unigrad.checkpoint(block)):
        with unigrad.GradientCollector(block) as collector:
            collector.backward(run(samples.tensor(np.array([1, 2], "float32"))))
        assert to_numpy(collector.gradients["w"]).tolist() == [1, 2]
        assert list(collector.input_gradients) == []
    assert marks == [(True, False)] * 3


@pytest.mark.case(40)
@pytest.mark.clause("C5", "C1")
def test_parameter_as_an_argument_keeps_its_identity(samples):
    seen = []
    block = unigrad.wrap({"w": samples.leaf(np.array([3, 4], "float32"))})
    weight = block.parameters["w"]

    def function(w, x):
        seen.append(w is weight)
        return samples.operations.sum(w * x)

    run = unigrad.checkpoint(function, blocks=[block])
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        collector.backward(run(weight, samples.tensor(np.array([1, 2], "float32"))))
        assert to_numpy(collector.gradients["w"]).tolist() == [1, 2]
        collector.backward(run(weight, samples.tensor(np.array([1, 2], "float32"))))
        assert to_numpy(collector.gradients["w"]).tolist() == [2, 4]
    assert seen == [True] * 4


@pytest.mark.case(41)
@pytest.mark.clause("C5", "C1")
def test_scale_of_a_normalization_gets_its_gradient(samples, record):
    block = unigrad.wrap(samples.layer("batch_norm", channels=1, momentum=0.1, epsilon=1e-5, affine=True)).train()
    factor = samples.tensor(np.array([[1], [2]], "float32"))
    with unigrad.GradientCollector(block) as collector:
        y = unigrad.checkpoint(block)(samples.tensor(np.array([[1], [3]], "float32")))
        collector.backward(samples.operations.sum(y * factor))
    np.testing.assert_allclose(to_numpy(collector.gradients["weight"]), [0.999995], rtol=1e-6)
    assert to_numpy(collector.gradients["bias"]).tolist() == [3]
    record("scale", collector.gradients["weight"], terms=4, reason="two terms of a normalization over two")


@pytest.mark.case(42)
@pytest.mark.clause("C10")
@pytest.mark.parametrize(
    "given", [True, pytest.param(False, marks=pytest.mark.needs(Capability.CAPTURES))], ids=["given", "captured"]
)
def test_variable_of_the_closure_gets_its_gradient(samples, given):
    w = samples.leaf(np.array(3, "float32"))
    block = unigrad.wrap({"w": w})
    run = unigrad.checkpoint(lambda x: w * x, blocks=[block] if given else None)
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(np.array(2, "float32")), name="x")
        collector.backward(run(x))
    assert to_numpy(collector.input_gradients["x"]) == 3
    assert to_numpy(collector.gradients["w"]) == 2


@pytest.mark.case(42)
@pytest.mark.clause("C10", "C9")
@pytest.mark.needs(Capability.MIXED_PRECISION, Capability.CAPTURES)
def test_variable_of_the_closure_under_mixed_precision(samples):
    operations = samples.operations
    w = samples.leaf(np.array([[3]], "float32"))
    block = unigrad.wrap({"w": w})
    run = unigrad.checkpoint(lambda x: operations.matmul(x, w))
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(np.array([[2]], "float32")), name="x")
        with samples.mixed_precision("bfloat16"):
            loss = operations.sum(run(x))
        collector.backward(loss)
    assert to_numpy(collector.input_gradients["x"]).item() == 3
    assert to_numpy(collector.gradients["w"]).item() == 2


@pytest.mark.case(43)
@pytest.mark.clause("C7", "B4")
@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_layer_first_built_in_a_checkpoint_exists_once(samples):
    block = unigrad.wrap(samples.layer("lazy_dense", outputs=1, bias=False))
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block) as collector:
        collector.backward(_square_sum(samples, run(samples.tensor(DATA))))
    assert list(collector.gradients) == list(block.parameters) == ["weight"]
    weight = block.state()["weight"]
    expected = 2 * (DATA.reshape(2, 2) @ weight.reshape(2)) @ DATA
    # Two products of two terms in float32.
    np.testing.assert_allclose(to_numpy(collector.gradients["weight"]).ravel(), expected, rtol=1e-5, atol=1e-5)
    block.load_state({"weight": np.ones_like(weight)})
    with unigrad.GradientCollector(block) as collector:
        collector.backward(_square_sum(samples, run(samples.tensor(DATA))))
    assert to_numpy(collector.gradients["weight"]).ravel().tolist() == [54, 92]
    assert list(block.parameters) == ["weight"]


@pytest.mark.case(43)
@pytest.mark.clause("C7")
def test_layer_constructed_in_the_function_body_is_an_error(samples):
    block = unigrad.wrap(
        samples.model(lambda self, x: _dense(samples, [[1, 1]])(x) * self.w, parameters={"w": np.ones(1, "float32")})
    )
    with (
        unigrad.GradientCollector(block, on_unused="ignore") as collector,
        pytest.raises(unigrad.CreatedParameterError, match="on each call"),
    ):
        collector.backward(_square_sum(samples, unigrad.checkpoint(block)(samples.tensor(DATA))))


@pytest.mark.case(44)
@pytest.mark.clause("C5", "G9")
@pytest.mark.parametrize("wanted", ["weight", "input", "both"])
def test_gradients_of_chosen_tensors(samples, wanted):
    layer = _dense(samples, [[1, -1]])
    block = unigrad.wrap(layer)
    with unigrad.GradientCollector(block, parameters=wanted != "input") as collector:
        x = samples.tensor(np.array([[1, 2]], "float32"))
        if wanted != "weight":
            x = collector.watch(x, name="x")
        collector.backward(_square_sum(samples, unigrad.checkpoint(layer)(x)))
    found = {
        name: to_numpy(value).tolist() for name, value in {**collector.gradients, **collector.input_gradients}.items()
    }
    expected = {"weight": [[-2, -4]], "x": [[-2, 2]]}
    assert found == {
        name: value for name, value in expected.items() if wanted == "both" or (name == "x") == (wanted == "input")
    }


@pytest.mark.case(36)
@pytest.mark.clause("C5", "B3")
def test_frozen_embedding_like_front_and_two_regions(samples):
    """The same with a frozen region in front of a trainable one."""
    layers = [unigrad.checkpoint(dense(samples, 2, 2)), unigrad.checkpoint(dense(samples, 2, 1, seed=1))]
    block = unigrad.wrap(samples.layer("sequential", layers=layers)).freeze("0")
    with unigrad.GradientCollector(block) as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(DATA))))
    assert sorted(collector.gradients) == ["1.bias", "1.weight"]
    assert to_numpy(collector.gradients["1.bias"]).tolist() == [2]

"""Real faults of kind B: how long graphs live, repeated backward, leaks and mutation."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import unigrad
from unigrad.errors import GraphReleasedError, RecomputeMismatchError, StaleGraphError
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.collecting import close, collects, f32, leaves, whole_tape
from unigrad_conformance.suite.problems import gradients_of, mlp, same_bits, to_numpy

EXACT = "small integers, exact in every dtype"
# Values of the cases are given to six decimals, and a float32 sum of a few terms is as good as that.
DIGITS = 1e-5


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.clause("G3")
@pytest.mark.case(11)
@pytest.mark.parametrize("mode", ["write", "add"])
@pytest.mark.parametrize(
    ("value", "loss", "wanted"),
    [
        pytest.param([1, 2], lambda samples, x: samples.operations.sum(x * x), [2, 4], id="squares"),
        pytest.param([1, 2], lambda samples, x: samples.operations.sum(x), [1, 1], id="sum"),
        pytest.param(3, lambda samples, x: x + 1.0, 1, id="shift"),
    ],
)
def test_backward_called_twice_by_accident(samples, record, mode, value, loss, wanted):
    own = leaves(samples, x=value)
    with collector_of(own, mode) as collector:
        total = loss(samples, own["x"])
        collector.backward(total)
        with pytest.raises(GraphReleasedError):
            collector.backward(total)
        collects(collector.gradients, x=wanted)
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G3")
@pytest.mark.case(13)
def test_the_refusal_is_unigrads_and_says_what_to_do(samples, record):
    own = leaves(samples, x=2)
    with collector_of(own) as collector:
        loss = own["x"] * own["x"]
        collector.backward(loss)
        with pytest.raises(GraphReleasedError, match="retain_graph") as caught:
            collector.backward(loss)
    collects(collector.gradients, x=4)
    record("error", type(caught.value).__name__)


@pytest.mark.clause("G15", "G0")
@pytest.mark.case(14)
@pytest.mark.parametrize("anew", [True, False], ids=["a-collector-a-round", "one-collector"])
def test_a_retained_graph_does_not_outlive_its_loss(samples, anew):
    model = mlp(samples, 4, 16, 1)
    told = []

    def one_round(collector):
        hidden = model(samples.tensor(f32(np.ones((8, 4)))))
        told.append(samples.storage_alive(hidden))
        collector.backward(samples.operations.sum(hidden * hidden), retain_graph=True)

    if anew:
        for _ in range(200):
            with collector_of(model) as collector:
                one_round(collector)
    else:
        with collector_of(model) as collector:
            for _ in range(200):
                one_round(collector)
            gc.collect()
            assert sum(alive() for alive in told) <= 1
    gc.collect()
    assert not any(alive() for alive in told)


LSTM = {
    "input_weight": [[0.1], [0.2], [0.3], [0.4]],
    "hidden_weight": [[0.5], [0.6], [0.7], [0.8]],
    "input_bias": [0.01, 0.02, 0.03, 0.04],
    "hidden_bias": [0.1, 0.2, 0.3, 0.4],
}


@pytest.mark.clause("G2", "G15")
@pytest.mark.case(15)
def test_a_recurrent_layer_with_a_retained_graph(samples, record):
    layer = samples.layer("lstm", **{name: f32(value) for name, value in LSTM.items()})
    x = samples.tensor(f32([[[1], [2]]]))
    found = {}
    for retain in (True, False):
        told = []
        for _ in range(5):
            with collector_of(layer) as collector:
                hidden = layer(x)
                told.append(samples.storage_alive(hidden))
                collector.backward(samples.operations.sum(hidden), retain_graph=retain)
                del hidden
        gc.collect()
        assert not any(alive() for alive in told)
        found[retain] = gradients_of(collector)
    same_bits(found[True], found[False])
    # The gates' gradients of case 95, for the sum over both steps.
    wanted = [0.352987, 0.069785, 0.663646, 0.265333]
    name = next(name for name, value in found[True].items() if "ih" in name and value.shape == (4, 1))
    np.testing.assert_allclose(found[True][name][:, 0], wanted, rtol=DIGITS)
    record("gradients", found[True], terms=16, reason="two steps of products of four gates")


@pytest.mark.clause("G2", "G1")
@pytest.mark.case(16)
def test_intermediate_gradients_start_anew(samples, record):
    own = leaves(samples, x=3)
    for mode, wanted in (("add", (24, 48)), ("write", (24, 24))):
        with collector_of(own, mode) as collector:
            a = own["x"] * 2.0
            loss = a * a
            for value in wanted:
                collector.backward(loss, retain_graph=True)
                collects(collector.gradients, x=value)
        record(mode, collector.gradients, reason=EXACT)


@pytest.mark.clause("G2", "C5")
@pytest.mark.case(17)
def test_two_backwards_through_a_checkpoint(samples, record):
    calls = []

    def forward(self):
        calls.append(1)
        return samples.operations.sin(self.x) * self.x

    model = samples.model(forward, parameters={"x": f32([1, 2])})
    run = unigrad.checkpoint(unigrad.wrap(model))
    with collector_of(model) as collector:
        loss = samples.operations.sum(run())
        collector.backward(loss, retain_graph=True)
        close(collector.gradients, DIGITS, x=[1.381773, 0.077004])
        collector.backward(loss)
        close(collector.gradients, DIGITS, x=[2.763546, 0.154007])
        with pytest.raises(GraphReleasedError):
            collector.backward(loss)
        close(collector.gradients, DIGITS, x=[2.763546, 0.154007])
    assert len(calls) == 3
    record("gradients", collector.gradients, terms=4, scale=3.0, reason="two passes of two terms that cancel")


@pytest.mark.clause("G15")
@pytest.mark.case(18)
def test_what_a_forward_kept_goes_with_its_loss(samples, backend):
    model = mlp(samples, 4, 8, 8, 1)
    told = []
    with collector_of(model) as collector:
        for backward in (True, False):
            hidden = samples.operations.tanh(model(samples.tensor(f32(np.ones((3, 4))))))
            told.append(samples.storage_alive(hidden))
            loss = samples.operations.sum(hidden * hidden)
            del hidden
            assert told[-1]()
            if backward:
                collector.backward(loss)
                gc.collect()
                assert not told[-1]()
            del loss
            gc.collect()
            assert not told[-1]() or whole_tape(backend)
    gc.collect()
    assert not told[-1]()


@pytest.mark.clause("G14")
@pytest.mark.case(19)
@pytest.mark.parametrize("form", ["built-in", "composite"])
def test_an_overwritten_result_is_right_or_an_error(samples, record, form):
    own = leaves(samples, a=[1, 2, 3])
    operations = samples.operations
    with collector_of(own) as collector:
        if form == "built-in":
            b = operations.sigmoid(own["a"])
        else:
            one = samples.tensor(f32([1, 1, 1]))
            b = one / (operations.exp(-own["a"]) + 1.0)
        try:
            collector.backward(operations.sum(operations.set_item(b, 1, 2.0)))
        except StaleGraphError:
            assert len(collector.gradients) == 0
        else:
            close(collector.gradients, DIGITS, a=[0.196612, 0, 0.045177])


@pytest.mark.clause("B6", "G14")
@pytest.mark.case(20)
def test_an_array_changed_after_it_was_handed_in(samples, backend, record):
    own = leaves(samples, w=[[3], [4]])
    array = f32([[1, 2]])
    x = backend.arrays.from_numpy(array)
    with collector_of(own) as collector:
        loss = samples.operations.sum(samples.operations.matmul(x, own["w"]))
        array += 10
        collector.backward(loss)
    collects(collector.gradients, w=[[1], [2]])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G14")
@pytest.mark.case(20)
def test_a_tensor_that_shares_memory_with_a_changed_array(samples, guarantee):
    declared = guarantee(Guarantee.STALE_HIDDEN)
    own = leaves(samples, w=[[3], [4]])
    array = f32([[1, 2]])
    x = samples.shared_tensor(array)
    with collector_of(own) as collector:
        loss = samples.operations.sum(samples.operations.matmul(x, own["w"]))
        array += 10
        if declared.endswith("Error"):
            with pytest.raises(getattr(unigrad, declared)):
                collector.backward(loss)
            return
        collector.backward(loss)
    collects(collector.gradients, w=[[1], [2]] if declared == "kept" else [[11], [12]])


@pytest.mark.clause("C8", "G14")
@pytest.mark.case(20)
def test_a_changed_array_below_a_checkpoint_is_noticed(samples, guarantee):
    guarantee(Guarantee.STALE_HIDDEN)  # a framework may be unable to share memory with an array
    model = samples.model(lambda self, x: samples.operations.matmul(x, self.w), parameters={"w": f32([[3], [4]])})
    run = unigrad.checkpoint(unigrad.wrap(model))
    array = f32([[1, 2]])
    x = samples.shared_tensor(array)
    with collector_of(model) as collector:
        loss = samples.operations.sum(run(x))
        array += 10
        with pytest.raises((RecomputeMismatchError, StaleGraphError)):
            collector.backward(loss)
        assert len(collector.gradients) == 0


@pytest.mark.clause("C8", "G14")
@pytest.mark.case(20)
@pytest.mark.parametrize("inside", [True, False], ids=["checkpoint", "plain"])
def test_a_weight_doubled_after_the_forward(samples, inside):
    def forward(self, x):
        y = samples.operations.matmul(x, self.w)
        return y * y

    model = samples.model(forward, parameters={"w": f32([[3], [4]])})
    block = unigrad.wrap(model)
    run = unigrad.checkpoint(block) if inside else block
    with collector_of(model) as collector:
        loss = samples.operations.sum(run(samples.tensor(f32([[1, 2]]))))
        samples.change(block.parameters["w"], f32([[6], [8]]))
        try:
            collector.backward(loss)
        except (StaleGraphError, RecomputeMismatchError):
            assert len(collector.gradients) == 0
        else:
            collects(collector.gradients, w=[[22], [44]])


@pytest.mark.clause("G15")
@pytest.mark.case(21)
def test_closed_collectors_leave_no_gradient_behind(samples, backend):
    model = mlp(samples, 4, 8, 1)
    block = unigrad.wrap(model)
    x = samples.tensor(f32(np.ones((3, 4))))
    told = []
    for _ in range(100):
        with collector_of(block) as collector:
            collector.backward(samples.operations.sum(block(x)))
        told.append(samples.storage_alive(collector.gradients["0.weight"]))
        del collector
    gc.collect()
    assert not any(alive() for alive in told)
    left = [backend.tape.native_gradient(tensor) for tensor in block.parameters.values()]
    assert all(gradient is None or not to_numpy(gradient).any() for gradient in left)

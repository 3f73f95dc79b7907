"""Clause G8: wrong losses are errors that name the likely cause and change nothing."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, LossError, NoGraphError, RecordingLostError
from unigrad_conformance.suite.collecting import collects, f32, leaves, state_of
from unigrad_conformance.suite.problems import dense, to_numpy

pytestmark = pytest.mark.clause("G8")


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def number(samples, own):
    return 3.5


def numpy_number(samples, own):
    return np.float32(3.5)


def numpy_array(samples, own):
    return np.ones((), "float32")


def nothing(samples, own):
    return None


def text(samples, own):
    return "loss"


def mapping(samples, own):
    return {"loss": samples.operations.sum(own["a"])}


def number_in_a_list(samples, own):
    return [samples.operations.sum(own["a"]), 2.0]


NO_TENSOR = [
    pytest.param(number, "item", id="number"),
    pytest.param(numpy_number, "item", id="numpy-number"),
    pytest.param(numpy_array, "tensor", id="numpy-array"),
    pytest.param(nothing, "tensor", id="none"),
    pytest.param(text, "tensor", id="text"),
    pytest.param(mapping, "tensor", id="mapping"),
    pytest.param(number_in_a_list, "loss 1", id="number-in-a-list"),
]


def constant(samples, own):
    return samples.tensor(f32(3.5))


def under_no_grad(samples, own):
    with samples.no_grad():
        return samples.operations.sum(own["a"] * own["a"])


def detached(samples, own):
    return samples.operations.stop_gradient(samples.operations.sum(own["a"] * own["a"]))


def of_constants(samples, own):
    return samples.operations.sum(samples.tensor(f32([1, 2])) * 2.0)


def integer(samples, own):
    return samples.tensor(np.array(3))


def constant_in_a_list(samples, own):
    return [samples.operations.sum(own["a"]), constant(samples, own)]


NO_GRAPH = [
    pytest.param(make, id=make.__name__.replace("_", "-"))
    for make in (constant, under_no_grad, detached, of_constants, integer, constant_in_a_list)
]


def refused(samples, own, collector, error, match, loss, **more):
    """Assert that a backward is refused, changes nothing, and leaves a retained graph usable."""
    good = samples.operations.sum(own["a"] * own["a"])
    collector.backward(good, retain_graph=True)
    before = state_of(collector)
    with pytest.raises(error, match=match):
        collector.backward(loss, **more)
    assert state_of(collector) == before
    collector.backward(good)
    collects(collector.gradients, a=[4, 8])


@pytest.mark.parametrize(("make", "match"), NO_TENSOR)
def test_what_is_no_tensor_is_a_type_error(samples, make, match):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        refused(samples, own, collector, ArgumentTypeError, match, make(samples, own))


@pytest.mark.parametrize("make", NO_GRAPH)
def test_a_loss_without_a_graph_is_an_error(samples, record, make):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        refused(samples, own, collector, NoGraphError, "loss", make(samples, own))
    record("error", NoGraphError.__name__)


@pytest.mark.parametrize("cause", ["outside", "no_grad|recording", "detach|stop", "constant"])
def test_a_loss_without_a_graph_names_the_likely_causes(samples, cause):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector, pytest.raises(NoGraphError, match=f"(?i){cause}"):
        collector.backward(constant(samples, own))


def test_an_empty_list_is_an_error(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        refused(samples, own, collector, ArgumentError, "at least one loss", [])


@pytest.mark.parametrize("shape", [(2,), (1, 2), (0,)], ids=["vector", "row", "empty"])
def test_several_elements_without_a_cotangent_are_an_error(samples, shape):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        part = samples.operations.index(own["a"], slice(0, int(np.prod(shape))))
        refused(samples, own, collector, LossError, "cotangent", samples.operations.reshape(part, shape))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=["scalar", "vector", "matrix"])
def test_one_element_of_any_shape_is_a_loss(samples, record, shape):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.reshape(samples.operations.sum(own["a"] * own["a"]), shape)
        collector.backward(loss)
    collects(collector.gradients, a=[2, 4])
    record("gradients", collector.gradients, reason="small integers, exact in every dtype")


def test_a_cotangent_gives_the_vector_jacobian_product(samples, record, dtype):
    own = leaves(samples, dtype, a=[1, 2, 3])
    with collector_of(own) as collector:
        collector.backward(own["a"] * own["a"], cotangent=samples.tensor(np.array([1.0, 10.0, 0.0]), dtype))
    collects(collector.gradients, a=[2, 40, 0])
    record("gradients", collector.gradients, reason="small integers, exact in every dtype")


def test_a_cotangent_of_one_element_scales(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]), cotangent=samples.tensor(f32(7)))
    collects(collector.gradients, a=[7, 7])


def test_a_list_takes_a_list_of_cotangents(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        losses = [own["a"] * own["a"], samples.operations.sum(own["a"])]
        collector.backward(losses, cotangent=[samples.tensor(f32([1, 10])), None])
    collects(collector.gradients, a=[2 + 1, 40 + 1])


def test_a_cotangent_is_not_written_to(samples):
    own = leaves(samples, a=[1, 2])
    vector = samples.tensor(f32([1, 10]))
    with collector_of(own) as collector:
        loss = own["a"] * own["a"]
        collector.backward(loss, cotangent=vector, retain_graph=True)
        collector.backward(loss, cotangent=vector)
    np.testing.assert_array_equal(to_numpy(vector), [1, 10])
    collects(collector.gradients, a=[4, 80])


@pytest.mark.parametrize(
    ("cotangent", "error", "match"),
    [
        pytest.param(lambda samples: samples.tensor(f32([1, 2, 3])), LossError, r"\(3,\)", id="longer"),
        pytest.param(lambda samples: samples.tensor(f32(1)), LossError, r"\(\)", id="scalar"),
        pytest.param(lambda samples: samples.tensor(f32([[1, 2]])), LossError, r"\(1, 2\)", id="row"),
        pytest.param(lambda samples: samples.tensor(np.array([1, 2])), LossError, "int64", id="integers"),
        pytest.param(lambda samples: [1.0, 2.0], ArgumentTypeError, "cotangent", id="list"),
        pytest.param(lambda samples: f32([1, 2]), ArgumentTypeError, "cotangent", id="array"),
        pytest.param(lambda samples: 1.0, ArgumentTypeError, "cotangent", id="number"),
    ],
)
def test_a_wrong_cotangent_is_an_error(samples, cotangent, error, match):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = own["a"] * own["a"]
        refused(samples, own, collector, error, match, loss, cotangent=cotangent(samples))


@pytest.mark.parametrize("count", [None, 1, 3], ids=["no-list", "too-few", "too-many"])
def test_cotangents_must_pair_with_losses(samples, count):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        one = samples.tensor(f32([1, 1]))
        cotangent = one if count is None else [one] * count
        losses = [own["a"] * own["a"], own["a"] * 2.0]
        refused(samples, own, collector, ArgumentError, "cotangent", losses, cotangent=cotangent)


def test_a_loss_may_be_the_parameter_itself(samples, record):
    own = leaves(samples, a=5)
    with collector_of(own) as collector:
        collector.backward(own["a"])
    collects(collector.gradients, a=1)
    record("gradients", collector.gradients, reason="exactly one")


def test_a_loss_that_reaches_none_of_the_block_is_no_error(samples):
    own, other = leaves(samples, a=[1, 2]), leaves(samples, b=[3, 4])
    with unigrad.GradientCollector(own, "write", on_unused="ignore") as collector:
        collector.backward(samples.operations.sum(own["a"]))
        collector.backward(samples.operations.sum(other["b"]))
        assert dict(collector.gradients) == {}
        assert collector.usage.outside == 1


def test_a_loss_that_reaches_none_of_the_block_follows_on_unused(samples):
    other = leaves(samples, b=[3, 4])
    collector = unigrad.GradientCollector(dense(samples, 2, 1), on_unused="error")
    with pytest.raises(unigrad.UnusedParameterError, match=r"weight.*bias|bias.*weight"), collector:
        collector.backward(samples.operations.sum(other["b"]))
    collector = unigrad.GradientCollector(dense(samples, 2, 1))
    with pytest.warns(unigrad.UnusedParameterWarning, match="weight"), collector:
        collector.backward(samples.operations.sum(other["b"]))
    assert len(collector.gradients) == 0


def test_a_nested_native_gradient_call_loses_nothing_in_silence(samples):
    own = leaves(samples, a=[1, 2])
    operations = samples.operations
    with collector_of(own) as collector:
        before = operations.sum(own["a"] * own["a"])
        inner = samples.call_native_gradient(lambda x: operations.sum(x * x * x), samples.tensor(f32([1, 2])))
        np.testing.assert_array_equal(to_numpy(inner), [3, 12])
        try:
            collector.backward(before)
            collector.backward(operations.sum(own["a"] * own["a"]))
        except RecordingLostError:
            lost = True
        else:
            lost = False
            collects(collector.gradients, a=[4, 8])
    if lost:
        with collector_of(own) as collector:
            collector.backward(operations.sum(own["a"] * own["a"]))
        collects(collector.gradients, a=[2, 4])


def test_refusals_do_not_count_as_use(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        with pytest.raises(LossError):
            collector.backward(own["a"] * 2.0)
        assert collector.usage.reached == ()
        assert collector.usage.disconnected == ("a",)

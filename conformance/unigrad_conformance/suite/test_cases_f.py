"""Real faults of kind F: the shape of a call, and a recompute that takes another path."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import to_numpy
from unigrad_conformance.suite.regions import Counted

X = np.array([1, 2], "float32")


def _gradient(samples, forward, call, loss_of):
    """Return the gradient of x and the outputs of a checkpointed model without parameters."""
    block = unigrad.wrap(samples.model(forward))
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(X), name="x")
        out = call(unigrad.checkpoint(block), x)
        collector.backward(samples.operations.sum(loss_of(out)))
    return to_numpy(collector.input_gradients["x"]).tolist(), out


@pytest.mark.case(45)
@pytest.mark.clause("C5")
def test_outputs_that_are_no_tensors_or_have_no_gradient(samples, backend):
    operations = samples.operations

    def forward(self, x, flag, name):
        assert flag is True
        return x * x, x > 1.5, operations.argmax(x), name, None

    gradient, out = _gradient(samples, forward, lambda run, x: run(x, True, "text"), lambda out: out[0])
    assert gradient == [2, 4]
    assert type(out) is tuple
    assert to_numpy(out[1]).tolist() == [False, True]
    assert int(to_numpy(out[2])) == 1
    assert out[3:] == ("text", None)
    assert not backend.arrays.requires_gradient(out[1])
    assert not backend.arrays.requires_gradient(out[2])


@pytest.mark.case(46)
@pytest.mark.clause("C5")
@pytest.mark.parametrize("kind", ["tuple", "mapping"])
def test_none_and_mapping_as_output(samples, kind):
    if kind == "tuple":
        gradient, out = _gradient(samples, lambda self, x: (x * x, None), lambda run, x: run(x), lambda out: out[0])
        assert out[1] is None
    else:
        gradient, out = _gradient(
            samples, lambda self, x: {"a": x * x, "n": 3}, lambda run, x: run(x), lambda out: out["a"]
        )
        assert out["n"] == 3
    assert gradient == [2, 4]


@pytest.mark.case(49)
@pytest.mark.clause("C5")
def test_flag_by_keyword_and_by_position(samples):
    def forward(self, x, train=False):
        return x + 1.0 if train else x

    block = unigrad.wrap(samples.model(forward))
    for call in (lambda run, x: run(x, train=True), lambda run, x: run(x, True)):
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(samples.tensor(np.array(5, "float32")), name="x")
            y = call(unigrad.checkpoint(block), x)
            collector.backward(y)
        assert to_numpy(y) == 6
        assert to_numpy(collector.input_gradients["x"]) == 1


def _sliced(samples, change):
    def forward(self, x):
        part = samples.operations.index(x + self.p, slice(0, 5))
        return change(part)

    return unigrad.wrap(samples.model(forward, parameters={"p": np.array(1, "float32")}))


@pytest.mark.case(50)
@pytest.mark.clause("C5", "C1")
@pytest.mark.parametrize("how", ["relu", "overwrite"])
def test_view_as_output_keeps_the_graph(samples, how):
    """A slice, and a slice with an element overwritten in place where the framework can."""
    operations = samples.operations
    change = operations.relu if how == "relu" else lambda part: operations.set_item(part, 4, 0.0)
    kept = [1, 1, 1, 1, 1 if how == "relu" else 0]
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _sliced(samples, change)
        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(samples.tensor(np.zeros(5, "float32")), name="x")
            collector.backward(operations.sum(checkpoint(block)(x)))
        assert to_numpy(collector.gradients["p"]) == sum(kept)
        assert to_numpy(collector.input_gradients["x"]).tolist() == kept


@pytest.mark.case(52)
@pytest.mark.clause("C5", "G10")
def test_one_parameter_in_two_regions(samples, record):
    block = unigrad.wrap(samples.model(lambda self, t: self.w * t, parameters={"w": np.array(3, "float32")}))
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(np.array(2, "float32")), name="x")
        collector.backward(run(run(x)))
    assert to_numpy(collector.gradients["w"]) == 12
    assert to_numpy(collector.input_gradients["x"]) == 9
    record("gradient", collector.gradients["w"], reason="small integers are exact")


@pytest.mark.case(53)
@pytest.mark.clause("C8")
@pytest.mark.parametrize("verify", [True, "full"], ids=["fingerprint", "full"])
def test_recompute_that_takes_another_path_is_an_error(samples, verify):
    operations = samples.operations
    count = Counted()

    def forward(self, x):
        return operations.sin(x) if count() % 2 else operations.exp(x)

    block = unigrad.wrap(samples.model(forward))
    with unigrad.GradientCollector(block, parameters=False) as collector:
        x = collector.watch(samples.tensor(np.array(0.5, "float32")), name="x")
        y = unigrad.checkpoint(block, verify=verify)(x)
        with pytest.raises(unigrad.RecomputeMismatchError):
            collector.backward(y)
        assert list(collector.input_gradients) == []
    # cos(0.5) is the gradient of what the forward returned; it is what an even number of calls gives.
    np.testing.assert_allclose(to_numpy(y), np.sin(0.5), rtol=1e-6)


@pytest.mark.case(54)
@pytest.mark.clause("C5", "C1", "C4")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_nested_checkpoints(samples, record):
    operations = samples.operations
    outer_count, inner_count = Counted(), Counted()

    def inner(self, t):
        inner_count()
        return operations.sin(t) * t

    def outer(self, t):
        outer_count()
        y = self.inner(t)
        return y * y

    model = samples.model(outer, layers={"inner": unigrad.checkpoint(samples.model(inner))})
    with unigrad.GradientCollector(model, parameters=False) as collector:
        t = collector.watch(samples.tensor(np.array(1.5, "float32")), name="t")
        collector.backward(unigrad.checkpoint(model)(t))
    gradient = to_numpy(collector.input_gradients["t"])
    np.testing.assert_allclose(gradient, 3.302509, rtol=1e-5)
    assert outer_count.calls == 2
    assert inner_count.calls <= 3
    record("gradient", gradient, terms=8, reason="sine, cosine and six products")

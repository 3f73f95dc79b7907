"""Checkpoint: what has no gradient in the plain run has none here, and usage is the same."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy


def _two_heads(samples):
    """Return a model with one trunk, two heads and a branch that is never called."""

    def forward(self, x):
        hidden = samples.operations.tanh(self.trunk(x))
        return self.left(hidden), self.right(hidden)

    layers = {
        "trunk": dense(samples, 3, 4),
        "left": dense(samples, 4, 2, seed=1),
        "right": dense(samples, 4, 2, seed=2),
        "spare": dense(samples, 4, 2, seed=3),
    }
    return samples.model(forward, layers=layers)


def _observe(samples, build, checkpoint, loss_of):
    block = unigrad.wrap(build(samples)).train()
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        x = collector.watch(samples.tensor(array(4, 3)), name="x")
        collector.backward(loss_of(checkpoint(block)(x)))
        usage = collector.usage
    return gradients_of(collector), list(collector.input_gradients), usage


LOSSES = {
    "left": lambda operations: lambda out: operations.sum(out[0]),
    "right": lambda operations: lambda out: operations.sum(out[1]),
    "both": lambda operations: lambda out: operations.sum(out[0]) + operations.sum(operations.tanh(out[1])),
    "times-zero": lambda operations: lambda out: operations.sum(out[0]) + operations.sum(out[1]) * 0.0,
}


@pytest.mark.clause("C6", "G6", "C1")
@pytest.mark.parametrize("used", LOSSES)
def test_names_with_a_gradient_are_those_of_the_plain_run(samples, record, used):
    loss_of = LOSSES[used](samples.operations)
    plain = _observe(samples, _two_heads, lambda block: block, loss_of)
    rerun = _observe(samples, _two_heads, unigrad.checkpoint, loss_of)
    assert sorted(plain[0]) == sorted(rerun[0])
    assert plain[1] == rerun[1] == ["x"]
    assert not any(name.startswith("spare") for name in rerun[0])
    for name, value in plain[0].items():
        if used in ("left", "right"):
            assert value.tobytes() == rerun[0][name].tobytes(), name
        else:  # the hidden tensor is used by two heads: two contributions, in either order
            bound = 4 * np.finfo("float32").eps * 4 * 4 * np.abs(value).max()  # over 4 samples of 4 terms
            np.testing.assert_allclose(rerun[0][name], value, rtol=0, atol=bound)
    record("names", sorted(rerun[0]))


@pytest.mark.clause("C6", "R2")
@pytest.mark.parametrize("used", LOSSES)
def test_usage_is_that_of_the_plain_run(samples, record, used):
    loss_of = LOSSES[used](samples.operations)
    plain = _observe(samples, _two_heads, lambda block: block, loss_of)[2]
    rerun = _observe(samples, _two_heads, unigrad.checkpoint, loss_of)[2]
    assert str(plain) == str(rerun)
    assert rerun.unused == ("spare.weight", "spare.bias")
    record("usage", str(rerun))


@pytest.mark.clause("C6")
def test_output_that_depends_on_no_parameter_reaches_none(samples):
    def forward(self, x):
        return x * self.w, samples.operations.sin(x)

    block = unigrad.wrap(samples.model(forward, parameters={"w": array(3)}))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        x = collector.watch(samples.tensor(array(3)), name="x")
        _, y = unigrad.checkpoint(block)(x)
        collector.backward(samples.operations.sum(y))
    assert list(collector.gradients) == []
    assert list(collector.input_gradients) == ["x"]


@pytest.mark.clause("C6")
def test_output_that_depends_on_no_input_reaches_none(samples):
    def forward(self, x):
        return x * self.w, samples.operations.sin(self.w)

    block = unigrad.wrap(samples.model(forward, parameters={"w": array(3)}))
    with unigrad.GradientCollector(block) as collector:
        x = collector.watch(samples.tensor(array(3)), name="x")
        _, y = unigrad.checkpoint(block)(x)
        collector.backward(samples.operations.sum(y))
    assert list(collector.gradients) == ["w"]
    assert list(collector.input_gradients) == []


@pytest.mark.clause("C6", "G6")
@pytest.mark.parametrize("how", ["stop-gradient", "no-grad"])
def test_parameter_behind_a_stop_is_absent(samples, how):
    operations = samples.operations

    def forward(self, x):
        if how == "stop-gradient":
            stopped = operations.stop_gradient(x * self.stopped)
        else:
            with samples.no_grad():
                stopped = x * self.stopped
        return stopped * self.w

    block = unigrad.wrap(samples.model(forward, parameters={"w": array(3), "stopped": array(3, seed=1)}))
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            x = collector.watch(samples.tensor(array(3, seed=2)), name="x")
            collector.backward(operations.sum(checkpoint(block)(x)))
        assert list(collector.gradients) == ["w"]
        assert list(collector.input_gradients) == []
        found.append(gradients_of(collector))
    same_bits(*found)


@pytest.mark.clause("C6", "B3")
def test_frozen_parameter_inside_is_absent(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_two_heads(samples)).freeze("trunk")
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            left, _ = checkpoint(block)(samples.tensor(array(4, 3)))
            collector.backward(samples.operations.sum(left))
        assert collector.usage.frozen == ("trunk.weight", "trunk.bias")
        found.append(gradients_of(collector))
    assert sorted(found[0]) == ["left.bias", "left.weight"]
    same_bits(*found)


@pytest.mark.clause("C6", "R3")
def test_unused_parameters_are_told_as_in_the_plain_run(samples):
    messages = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_two_heads(samples))
        with (
            pytest.warns(unigrad.UnusedParameterWarning) as caught,
            unigrad.GradientCollector(block) as collector,
        ):
            collector.backward(samples.operations.sum(checkpoint(block)(samples.tensor(array(4, 3)))[0]))
        messages.append([str(item.message) for item in caught])
    assert messages[0] == messages[1]


@pytest.mark.clause("C6", "R1", "B8")
def test_parameters_are_registered_by_the_forward(samples):
    """A region registers what it uses when it runs, before any backward."""
    block = unigrad.wrap(_two_heads(samples))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        unigrad.checkpoint(block)(samples.tensor(array(4, 3)))
        assert "trunk.weight" in collector.usage.disconnected
    assert block.registered == ("trunk.weight", "trunk.bias", "left.weight", "left.bias", "right.weight", "right.bias")


@pytest.mark.clause("C6")
def test_region_whose_outputs_are_not_used_runs_no_recompute(samples):
    calls: list[None] = []

    def forward(self, x):
        calls.append(None)
        return samples.operations.tanh(x * self.w)

    model = samples.model(forward, parameters={"w": array(3)})
    other = samples.model(lambda self, x: x * self.v, parameters={"v": array(3)})
    with unigrad.GradientCollector(
        {"model": unigrad.wrap(model), "other": unigrad.wrap(other)}, on_unused="ignore"
    ) as collector:
        x = samples.tensor(array(3))
        unigrad.checkpoint(model)(x)
        collector.backward(samples.operations.sum(other(x)))
    assert len(calls) == 1
    assert list(collector.gradients) == ["other.v"]
    assert to_numpy(collector.gradients["other.v"]).tolist() == array(3).tolist()


@pytest.mark.clause("C6", "R2")
def test_recompute_is_no_use_of_parameters(samples):
    """After ``zero`` usage begins anew; what only the recompute of an earlier forward touches is not used."""
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_two_heads(samples))
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            left, _ = checkpoint(block)(samples.tensor(array(4, 3)))
            collector.zero()
            collector.backward(samples.operations.sum(left))
            found.append(str(collector.usage))
    assert found[0] == found[1]


@pytest.mark.clause("C6", "B3")
def test_freezing_between_forward_and_backward_is_as_in_the_plain_run(samples):
    """The forward was recorded with the parameter; the gradients of the others do not depend on its mark."""
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(_two_heads(samples))
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            left, right = checkpoint(block)(samples.tensor(array(4, 3)))
            block.freeze("right")
            collector.backward(samples.operations.sum(left) + 0.0 * samples.operations.sum(right))
        found.append({name: value for name, value in gradients_of(collector).items() if not name.startswith("right")})
        assert not block.backend.block.trainable(block.parameters["right.weight"])
    assert sorted(found[0]) == ["left.bias", "left.weight", "trunk.bias", "trunk.weight"]
    for name, value in found[0].items():
        # Two heads, one of them times zero: the sum is exact in either order.
        np.testing.assert_array_equal(found[1][name], value)


@pytest.mark.clause("C6", "B3")
@pytest.mark.parametrize("how", ["freeze", "unfreeze"])
def test_normalization_frozen_or_not_since_is_recomputed_as_it_was(samples, how):
    """Whether a normalization uses its running statistics is decided at the forward."""
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        norm = samples.layer("batch_norm", channels=4, momentum=0.1, epsilon=1e-5, affine=True)
        layers = [dense(samples, 3, 4), norm, dense(samples, 4, 2, seed=1)]
        block = unigrad.wrap(samples.layer("sequential", layers=layers)).train()
        if how == "unfreeze":
            block.freeze("1")
        run = checkpoint(block)
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            y = run(samples.tensor(array(5, 3)))
            block.freeze("1") if how == "freeze" else block.unfreeze("1")
            collector.backward(samples.operations.sum(samples.operations.tanh(y)))
        gradients = gradients_of(collector)
        found.append({name: gradients[name] for name in ("0.weight", "2.weight", "2.bias")} | block.state())
    same_bits(*found)

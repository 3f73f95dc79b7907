"""Checkpoint: several losses, released regions, shared parameters, no_grad, the switch, functions and methods."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, gradients_of, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, total


def _scale(samples, forward):
    return unigrad.wrap(samples.model(forward, parameters={"w": array(3)}))


@pytest.mark.clause("C5", "G2")
def test_several_losses_from_one_region(samples):
    operations = samples.operations

    def forward(self, x):
        return operations.tanh(x * self.w), operations.sin(x * self.w)

    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _scale(samples, forward)
        steps = {}
        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(samples.tensor(array(3, seed=9)), name="x")
            y, z = checkpoint(block)(x)
            for name, loss, retain in (("y", y, True), ("z", z, True), ("y again", y, True), ("both", y + z, False)):
                collector.backward(operations.sum(loss), retain_graph=retain)
                steps[f"w of {name}"] = to_numpy(collector.gradients["w"])
                steps[f"x of {name}"] = to_numpy(collector.input_gradients["x"])
        found.append(steps)
    for name, value in found[0].items():
        if name.endswith("both"):  # two contributions, which a recompute may sum in another order
            np.testing.assert_allclose(found[1][name], value, rtol=4 * 2.0**-23)
        else:
            assert found[1][name].tobytes() == value.tobytes(), name


@pytest.mark.clause("C5", "G3")
def test_released_region_raises(samples):
    block = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w))
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(3))))
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
        before = gradients_of(collector)
        with pytest.raises(unigrad.GraphReleasedError):
            collector.backward(loss)
        same_bits(before, gradients_of(collector))


@pytest.mark.clause("C5")
def test_shared_parameters_of_two_regions_sum(samples):
    operations = samples.operations
    first = samples.model(lambda self, x: operations.tanh(x * self.w), parameters={"w": array(3)})
    second = samples.model(lambda self, x: operations.sin(x * self.w), parameters={"w": first.w})
    block = unigrad.join(first=first, second=second)
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        with unigrad.GradientCollector(block) as collector:
            x = samples.tensor(array(3, seed=9))
            collector.backward(operations.sum(checkpoint(second)(checkpoint(first)(x))))
        found.append(gradients_of(collector))
    assert sorted(found[0]) == ["first.w"]
    # Two contributions in either order, each of three float32 products.
    np.testing.assert_allclose(found[1]["first.w"], found[0]["first.w"], rtol=8 * 2.0**-23)


@pytest.mark.clause("C5")
def test_no_grad_is_the_plain_call_without_a_warning(samples, backend):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    block = _scale(samples, forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unigrad.GradientCollector(block, on_unused="ignore"), samples.no_grad():
            y = unigrad.checkpoint(block)(samples.tensor(array(3)))
    assert count.calls == 1
    assert not backend.arrays.requires_gradient(y)
    same_bits({"y": to_numpy(y)}, {"y": to_numpy(block(samples.tensor(array(3))))})


@pytest.mark.clause("C5")
def test_nothing_trainable_is_the_plain_call(samples, backend):
    block = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w)).freeze("w")
    with unigrad.GradientCollector(block, on_unused="ignore"):
        y = unigrad.checkpoint(block)(samples.tensor(array(3)))
    assert not backend.arrays.requires_gradient(y)


@pytest.mark.clause("C5")
def test_disabled_checkpoint_is_the_plain_call(samples):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    block = _scale(samples, forward)
    run = unigrad.checkpoint(block.native)
    run.enabled = False
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, run(samples.tensor(array(3)))))
    assert count.calls == 1
    run.enabled = True
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, run(samples.tensor(array(3)))))
    assert count.calls == 3


@pytest.mark.clause("C5")
def test_function_over_blocks(samples):
    found = []
    for checkpoint in (False, True):
        first = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w))
        second = unigrad.wrap(samples.model(lambda self, x: x + self.b, parameters={"b": array(3, seed=2)}))

        def both(x, factor, first=first, second=second):
            return second(first(x)) * factor

        run = unigrad.checkpoint(both, blocks=[first, second]) if checkpoint else both
        with unigrad.GradientCollector({"first": first, "second": second}) as collector:
            collector.backward(total(samples, run(samples.tensor(array(3)), factor=2.0)))
        found.append(gradients_of(collector))
    assert sorted(found[0]) == ["first.w", "second.b"]
    same_bits(*found)


@pytest.mark.clause("C5", "C10")
@pytest.mark.needs(Capability.CAPTURES)
def test_functions_and_methods_stay_what_they_are(samples):
    model = samples.model(lambda self, x: x * self.w, parameters={"w": array(3)})

    @unigrad.checkpoint
    def run(x):
        """Say what it does."""
        return samples.operations.tanh(model(x))

    class Holder:
        @unigrad.checkpoint
        def method(self, x):
            return samples.operations.tanh(model(x)) * self.factor

        factor = 2.0

    assert run.__name__ == "run"
    assert run.__doc__ == "Say what it does."
    for call in (run, Holder().method):
        with unigrad.GradientCollector(model) as collector:
            collector.backward(total(samples, call(samples.tensor(array(3)))))
        assert list(collector.gradients) == ["w"]


@pytest.mark.clause("C5", "G8")
def test_backward_under_no_grad_is_right(samples):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w))
        with unigrad.GradientCollector(block) as collector:
            loss = total(samples, checkpoint(block)(samples.tensor(array(3, seed=1))))
            with samples.no_grad():
                collector.backward(loss)
        found.append(gradients_of(collector))
    same_bits(*found)


@pytest.mark.clause("C5", "C1", "C2")
def test_native_gradient_idiom_goes_through_a_checkpoint(samples):
    """Outside of any collector, where the framework records by its own means."""
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _scale(samples, lambda self, x: samples.operations.dropout(samples.operations.tanh(x * self.w), 0.5))
        run = checkpoint(block.train())
        unigrad.seed(3)
        with unigrad.GradientCollector(block, on_unused="ignore"):  # its stream is that of the block's calls
            x = samples.tensor(array(3, seed=1))
        gradient = samples.call_native_gradient(lambda t: total(samples, run(t)), x)  # noqa: B023  # called at once
        found.append({"x": to_numpy(gradient)})
    same_bits(*found)


@pytest.mark.clause("C5", "G9")
def test_tensor_watched_inside_a_region_gets_the_gradient_of_the_plain_run(samples):
    """The gradient, in every backward, or an error of unigrad's; never none."""
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        steps = []
        collector: Any = None

        def forward(self, x):
            hidden = collector.watch(samples.operations.tanh(x * self.w), name="hidden")  # noqa: B023  # in this turn
            return samples.operations.sin(hidden)

        block = _scale(samples, forward)
        try:
            with unigrad.GradientCollector(block) as collector:
                loss = total(samples, checkpoint(block)(samples.tensor(array(3, seed=1))))
                for retain in (True, False):
                    collector.backward(loss, retain_graph=retain)
                    steps.append(to_numpy(collector.input_gradients["hidden"]))
        except unigrad.UnigradError:
            assert checkpoint is unigrad.checkpoint  # one of two right outcomes
            return
        found.append({str(index): value for index, value in enumerate(steps)})
    same_bits(*found)


@pytest.mark.clause("C5")
def test_tensors_inside_an_unknown_object_are_right_or_refused(samples):
    class Unknown:
        def __init__(self, y):
            self.y = y

    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _scale(samples, lambda self, x: Unknown(samples.operations.tanh(x * self.w)))
        with unigrad.GradientCollector(block) as collector:
            try:
                out = checkpoint(block)(samples.tensor(array(3, seed=1)))
                collector.backward(total(samples, out.y))
            except unigrad.UnigradError:
                assert checkpoint is unigrad.checkpoint  # one of two right outcomes
                return
        found.append(gradients_of(collector))
    same_bits(*found)

"""Models that a checkpointed or microbatched function reaches by a way that can't be seen before it runs."""

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, gradients_of, same_bits

pytestmark = pytest.mark.needs(Capability.CAPTURES)


def hidden(model):
    """Return a function that calls the model, which no search of its closure can find."""
    nest = [[[[[[[[[model]]]]]]]]]

    def call(x):
        inner = nest
        while isinstance(inner, list):
            inner = inner[0]
        return unigrad.wrap(inner)(x)  # in the block's mode, which a native call need not follow

    return call


def normalization(samples):
    layer = samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)
    unigrad.wrap(layer).train()  # new layers of some frameworks are in inference mode
    return layer


@pytest.mark.clause("C3")
@pytest.mark.case(30)
def test_its_buffers_change_once(samples, backend):
    states, gradients = [], []
    for function in (hidden, lambda model: unigrad.checkpoint(hidden(model))):
        model = normalization(samples)
        run = function(model)
        with unigrad.GradientCollector(model) as collector:
            out = run(samples.tensor(array(5, 3)))
            loss = samples.operations.sum(out * out)
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        states.append(unigrad.wrap(model).state())
        gradients.append(gradients_of(collector))
    same_bits(*states)
    same_bits(*gradients)


@pytest.mark.clause("C1")
def test_its_recompute_sees_the_buffers_of_the_forward(samples):
    gradients = []
    for function in (hidden, lambda model: unigrad.checkpoint(hidden(model))):

        def forward(self, x):
            scaled = x * self.weight * (self.count * 1.0)
            samples.set_buffer(self, "count", self.count + 1.0)
            return scaled

        model = samples.model(
            forward,
            parameters={"weight": np.ones(2, "float32")},
            buffers={"count": np.full(2, 3, "float32")},
        )
        run = function(model)
        with unigrad.GradientCollector(model) as collector:
            collector.backward(samples.operations.sum(run(samples.tensor(array(2)))))
        gradients.append(gradients_of(collector))
    same_bits(*gradients)


@pytest.mark.clause("M5")
def test_its_moved_buffers_are_noticed_and_put_back(samples):
    model = normalization(samples)
    before = unigrad.wrap(model).state()
    run = unigrad.microbatch(hidden(model), size=2)
    with (
        unigrad.GradientCollector(model, on_unused="ignore"),
        pytest.raises(unigrad.BatchCoupledError, match=r"running_mean|num_batches"),
    ):
        run(samples.tensor(array(4, 3)))
    same_bits(before, unigrad.wrap(model).state())

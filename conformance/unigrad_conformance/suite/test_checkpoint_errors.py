"""Checkpoint: exceptions keep their type and leave everything as it was; what means nothing is refused."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad.recompute import in_recompute
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, random_bits


class OwnError(Exception):
    """An exception that only this file knows."""

    def __init__(self, code, *, detail):
        super().__init__(f"{code}: {detail}")
        self.code = code


def _failing(samples, at, error):
    """Return a block with dropout, batch norm and a counter that fails at its ``at``-th call, late in the forward."""
    count = Counted()

    def forward(self, x):
        y = self.norm(samples.operations.dropout(x * self.w, 0.5))
        samples.set_buffer(self, "count", self.count + 1)
        if count() == at:
            raise error
        return samples.operations.tanh(y)

    return unigrad.wrap(
        samples.model(
            forward,
            parameters={"w": array(3)},
            buffers={"count": np.array([0], "int64")},
            layers={"norm": samples.layer("batch_norm", channels=3, momentum=0.1, epsilon=1e-5, affine=True)},
        )
    ).train()


def _errors():
    return [OwnError(7, detail="own"), KeyError("mask"), KeyboardInterrupt("stop"), RuntimeError("a plain one")]


@pytest.mark.clause("C11")
@pytest.mark.parametrize("index", range(4), ids=["own", "key", "interrupt", "runtime"])
def test_exception_of_the_forward_is_the_same_object(samples, index):
    error = _errors()[index]
    block = _failing(samples, 1, error)
    with unigrad.GradientCollector(block, on_unused="ignore"), pytest.raises(type(error)) as caught:
        unigrad.checkpoint(block)(samples.tensor(array(4, 3)))
    assert caught.value is error


@pytest.mark.clause("C11")
@pytest.mark.parametrize("index", range(4), ids=["own", "key", "interrupt", "runtime"])
def test_exception_of_the_recompute_is_the_same_object(samples, index):
    error = _errors()[index]
    block = _failing(samples, 2, error)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = samples.operations.sum(unigrad.checkpoint(block)(samples.tensor(array(4, 3))))
        with pytest.raises(type(error)) as caught:
            collector.backward(loss)
    assert caught.value is error


@pytest.mark.clause("C11", "C2", "C3")
def test_failing_forward_leaves_what_the_plain_run_leaves(samples, backend):
    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _failing(samples, 1, OwnError(7, detail="own"))
        unigrad.seed(3)
        with unigrad.GradientCollector(block, on_unused="ignore"):
            with pytest.raises(OwnError):
                checkpoint(block)(samples.tensor(array(4, 3)))
            assert backend.tape.is_recording()
            assert not in_recompute()
            found.append((block.state(), random_bits(backend), block.training))
    same_bits(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


@pytest.mark.clause("C11", "C2", "C3", "G15")
def test_failing_recompute_leaves_everything_as_it_was(samples, backend):
    block = _failing(samples, 3, OwnError(7, detail="own"))
    run = unigrad.checkpoint(block)
    with unigrad.GradientCollector(block, accumulate="add") as collector:
        loss = samples.operations.sum(run(samples.tensor(array(4, 3))))
        collector.backward(loss, retain_graph=True)
        block.eval()
        before = (block.state(), gradients_of(collector)), (random_bits(backend), block.training)
        with pytest.raises(OwnError):
            collector.backward(loss)
        after = (block.state(), gradients_of(collector)), (random_bits(backend), block.training)
        assert backend.tape.is_recording()
        assert not in_recompute()
    same_bits(before[0][0], after[0][0])
    same_bits(before[0][1], after[0][1])
    assert before[1] == after[1]


@pytest.mark.clause("C11", "G3")
def test_backward_works_again_after_a_failing_recompute(samples):
    """The failing call changed nothing, so the same backward gives the gradient of the plain run."""
    gradients = []
    for checkpoint, at in ((lambda block: block, 99), (unigrad.checkpoint, 2)):
        block = _failing(samples, at, OwnError(7, detail="own"))
        unigrad.seed(3)
        with unigrad.GradientCollector(block) as collector:
            loss = samples.operations.sum(checkpoint(block)(samples.tensor(array(4, 3))))
            if at == 2:
                with pytest.raises(OwnError):
                    collector.backward(loss)
                assert list(collector.gradients) == []
            collector.backward(loss)
        gradients.append(gradients_of(collector))
    same_bits(*gradients)


@pytest.mark.clause("C11", "C5")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_exception_of_an_inner_recompute_keeps_its_type(samples):
    error = OwnError(7, detail="own")
    block = _failing(samples, 3, error)  # forward, outer recompute, inner recompute
    inner = unigrad.checkpoint(block)
    outer = unigrad.checkpoint(lambda x: samples.operations.tanh(inner(x)), blocks=[block])
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = samples.operations.sum(outer(samples.tensor(array(4, 3))))
        with pytest.raises(OwnError) as caught:
            collector.backward(loss)
    assert caught.value is error


@pytest.mark.clause("C11")
def test_wrong_arguments_of_the_function_are_its_own_error(samples):
    block = unigrad.wrap(samples.model(lambda self, x: x * self.w, parameters={"w": array(3)}))
    with unigrad.GradientCollector(block, on_unused="ignore"), pytest.raises(TypeError, match="mask"):
        unigrad.checkpoint(block)(samples.tensor(array(3)), mask=None)


@pytest.mark.clause("C12")
@pytest.mark.parametrize("target", [3, "model", None, [1], int], ids=["number", "text", "none", "list", "class"])
def test_what_cannot_be_run_is_refused(target):
    with pytest.raises(unigrad.ArgumentTypeError, match="checkpoint takes"):
        unigrad.checkpoint(target)


@pytest.mark.clause("C12", "B7")
def test_block_without_a_call_is_refused(samples):
    with pytest.raises(unigrad.ArgumentTypeError, match="no call"):
        unigrad.checkpoint(unigrad.wrap({"w": samples.leaf(array(3))}))


@pytest.mark.clause("C12")
def test_blocks_of_a_model_are_refused(samples):
    with pytest.raises(unigrad.ArgumentError, match="blocks="):
        unigrad.checkpoint(dense(samples, 2, 2), blocks=[dense(samples, 2, 2)])


@pytest.mark.clause("C12", "C11")
def test_failure_in_one_region_leaves_others_working(samples):
    broken = _failing(samples, 1, OwnError(7, detail="own"))
    healthy = unigrad.wrap(mlp(samples, 3, 4, 2))
    with unigrad.GradientCollector(healthy) as collector:
        x = samples.tensor(array(4, 3))
        with pytest.raises(OwnError):
            unigrad.checkpoint(broken)(x)
        y = unigrad.checkpoint(healthy)(x)
        collector.backward(samples.operations.sum(y))
    with unigrad.GradientCollector(healthy) as plain:
        plain.backward(samples.operations.sum(healthy(x)))
    same_bits(gradients_of(plain), gradients_of(collector))
    assert to_numpy(y).shape == (4, 2)

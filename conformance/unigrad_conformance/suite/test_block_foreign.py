"""A4: a tensor, block or optimizer of one framework given to another's is a TypeError that names both."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import unigrad
from unigrad import plugins
from unigrad.errors import BackendMismatchError
from unigrad_conformance.suite.problems import array, dense

pytestmark = pytest.mark.clause("A4")


class ForeignTensor:
    """Stands for a tensor of a framework that is not installed here."""


class ForeignModel:
    """Stands for a model of it."""

    def __call__(self, x):
        """Do nothing."""
        return x


@pytest.fixture
def elsewhere(backend, monkeypatch):
    """Make the two classes above known as those of a backend 'elsewhere', without installing one."""
    foreign = SimpleNamespace(
        spec=unigrad.BackendSpec(name="elsewhere", framework="elsewhere", install="", package="elsewhere"),
        block=SimpleNamespace(is_model=lambda obj: isinstance(obj, ForeignModel), unwrap=lambda model: model),
        arrays=SimpleNamespace(is_tensor=lambda obj: isinstance(obj, ForeignTensor)),
        optimizer=SimpleNamespace(is_optimizer=lambda obj: False),
        rng=SimpleNamespace(is_generator=lambda obj: False),
        tape=SimpleNamespace(),
    )
    for kind in (ForeignTensor, ForeignModel):
        monkeypatch.setitem(plugins._by_type, kind, foreign)
    return foreign


@pytest.fixture
def names(backend, elsewhere):
    """Pattern that a message with both names fits."""
    here = backend.spec.name
    return rf"(?s)(elsewhere.*\b{here}\b|\b{here}\b.*elsewhere)"


def test_a_foreign_loss(samples, names):
    with unigrad.GradientCollector(dense(samples, 2, 2)) as collector:
        with pytest.raises(BackendMismatchError, match=names) as caught:
            collector.backward(ForeignTensor())
        assert isinstance(caught.value, TypeError)
        with pytest.raises(BackendMismatchError, match=names):
            collector.backward([ForeignTensor()])


def test_a_foreign_cotangent(samples, names):
    block = unigrad.wrap(dense(samples, 2, 2))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = block(samples.tensor(array(1, 2)))
        with pytest.raises(BackendMismatchError, match=names):
            collector.backward(loss, cotangent=ForeignTensor())
        collector.backward(loss, cotangent=samples.tensor(np.ones((1, 2), "float32")))


def test_a_foreign_gradient_for_an_optimizer(samples, names):
    optimizer = unigrad.Optimizer(dense(samples, 2, 2), samples.sgd(0.1))
    with pytest.raises(BackendMismatchError, match=names):
        optimizer.step({"weight": ForeignTensor()})
    assert optimizer.native is None


def test_a_foreign_tensor_to_watch(samples, names):
    with (
        unigrad.GradientCollector(dense(samples, 2, 2)) as collector,
        pytest.raises(BackendMismatchError, match=names),
    ):
        collector.watch(ForeignTensor(), "x")


def test_a_mapping_of_two_frameworks(samples, names):
    with pytest.raises(BackendMismatchError, match=names):
        unigrad.wrap({"here": samples.leaf(array(2)), "there": ForeignTensor()})


def test_joined_blocks_of_two_frameworks(samples, names):
    with pytest.raises(BackendMismatchError, match=names):
        unigrad.join(here=dense(samples, 2, 2), there=ForeignModel())
    with pytest.raises(BackendMismatchError, match=names):
        unigrad.GradientCollector({"here": unigrad.wrap(dense(samples, 2, 2)), "there": unigrad.wrap(ForeignModel())})


def test_a_foreign_optimizer(samples, backend, elsewhere, names):
    optimizer = unigrad.Optimizer(dense(samples, 2, 2), samples.sgd(0.1))
    optimizer.backend = elsewhere
    with unigrad.GradientCollector(dense(samples, 2, 2)) as collector, pytest.raises(BackendMismatchError, match=names):
        collector.apply(optimizer)


@pytest.mark.parametrize(
    "wrap", [unigrad.checkpoint, lambda f, **k: unigrad.microbatch(f, 1, **k)], ids=["checkpoint", "microbatch"]
)
def test_a_foreign_argument_of_a_region(samples, names, wrap):
    block = unigrad.wrap(dense(samples, 2, 2))
    run = wrap(lambda x, y: block(x), blocks=[block])
    with (
        unigrad.GradientCollector(block),
        pytest.raises(BackendMismatchError, match=names),
    ):
        run(samples.tensor(array(1, 2)), ForeignTensor())


def test_foreign_blocks_of_a_region(samples, names):
    block = unigrad.wrap(dense(samples, 2, 2))
    run = unigrad.checkpoint(lambda x: block(x), blocks=[block, ForeignModel()])
    with unigrad.GradientCollector(block), pytest.raises(BackendMismatchError, match=names):
        run(samples.tensor(array(1, 2)))

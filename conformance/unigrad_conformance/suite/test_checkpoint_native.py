"""Checkpoint of a native module: a native module that stands in the framework's own containers under its own names."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, step, total

pytestmark = pytest.mark.clause("C13")


def _layers(samples):
    """Return one new trunk with dropout and statistics, and one head."""
    norm = samples.layer("batch_norm", channels=4, momentum=0.1, epsilon=1e-5, affine=True)
    trunk = samples.layer("sequential", layers=[dense(samples, 3, 4), norm, samples.layer("dropout", rate=0.5)])
    return trunk, dense(samples, 4, 2, seed=1)


def _plain_and_facade(samples):
    """Return the same model twice, the second one with its trunk checkpointed."""
    trunk, head = _layers(samples)
    plain = samples.layer("sequential", layers=[trunk, head])
    trunk, head = _layers(samples)
    return plain, samples.layer("sequential", layers=[unigrad.checkpoint(trunk), head])


def test_native_module_gives_a_native_module(samples, backend):
    model = mlp(samples, 3, 4, 2)
    run = unigrad.checkpoint(model)
    assert backend.block.is_model(run)
    assert isinstance(run, type(model))
    assert run is not model


def test_block_gives_a_block_and_function_gives_a_function(samples, backend):
    block = unigrad.wrap(mlp(samples, 3, 4, 2))
    assert isinstance(unigrad.checkpoint(block), unigrad.Block)

    def function(x):
        return x

    run = unigrad.checkpoint(function, blocks=[block])
    assert callable(run)
    assert run.__name__ == "function"
    assert not backend.block.is_model(run)


def test_parameters_are_the_same_objects_under_the_same_names(samples):
    model = _layers(samples)[0]
    plain, facade = unigrad.wrap(model), unigrad.wrap(unigrad.checkpoint(model))
    assert list(plain.parameters) == list(facade.parameters)
    assert all(plain.parameters[name] is facade.parameters[name] for name in plain.parameters)
    assert list(plain.buffers) == list(facade.buffers)
    assert dict(plain.roles) == dict(facade.roles)
    assert [plain.native_name(name) for name in plain.parameters] == [
        facade.native_name(name) for name in facade.parameters
    ]


def test_names_in_a_container_have_no_prefix(samples, record):
    plain, facade = map(unigrad.wrap, _plain_and_facade(samples))
    assert list(plain.parameters) == list(facade.parameters)
    assert list(plain.buffers) == list(facade.buffers)
    same_bits(plain.state(), facade.state())
    record(
        "names", [*facade.parameters, *(name for name in facade.buffers if "running" in name)]
    )  # some count batches too


def test_facade_as_a_named_member_of_a_model(samples):
    inner = mlp(samples, 3, 4, 2)
    block = unigrad.wrap(samples.model(lambda self, x: self.inner(x), layers={"inner": unigrad.checkpoint(inner)}))
    assert list(block.parameters) == ["inner.0.weight", "inner.0.bias", "inner.2.weight", "inner.2.bias"]


@pytest.mark.clause("C1", "C2", "C3")
def test_step_in_a_container_has_the_bits_of_the_plain_one(samples):
    plain, facade = (unigrad.wrap(model).train() for model in _plain_and_facade(samples))
    x = array(5, 3)
    same_bits(step(samples, plain, plain, x), step(samples, facade, facade, x))


@pytest.mark.clause("C4")
def test_facade_in_a_container_is_recomputed(samples):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    inner = samples.model(forward, parameters={"w": array(3)})
    block = unigrad.wrap(samples.layer("sequential", layers=[unigrad.checkpoint(inner), dense(samples, 3, 2)]))
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, block(samples.tensor(array(4, 3))))
        assert count.calls == 1
        collector.backward(loss)
    assert count.calls == 2


@pytest.mark.clause("C5")
def test_disabled_facade_in_a_container_is_the_plain_call(samples):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    run = unigrad.checkpoint(samples.model(forward, parameters={"w": array(3)}))
    assert run.enabled is True
    run.enabled = False
    block = unigrad.wrap(samples.layer("sequential", layers=[run]))
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, block(samples.tensor(array(3)))))
    assert count.calls == 1


@pytest.mark.clause("B5")
def test_state_moves_between_plain_and_checkpointed_models(samples, tmp_path):
    plain, facade = map(unigrad.wrap, _plain_and_facade(samples))
    plain.load_state({name: value + 1 for name, value in plain.state().items()})
    plain.save(tmp_path / "plain.safetensors")
    facade.load(tmp_path / "plain.safetensors")
    same_bits(plain.state(), facade.state())
    facade.save(tmp_path / "facade.safetensors")
    plain.load(tmp_path / "facade.safetensors")


@pytest.mark.clause("B3")
def test_modes_reach_through_the_facade(samples):
    plain, facade = map(unigrad.wrap, _plain_and_facade(samples))
    x = samples.tensor(array(5, 3))
    for block in (plain, facade):
        block.train()
        block(x)
        block.eval()
    with unigrad.GradientCollector(facade, on_unused="ignore"):
        same_bits({"y": to_numpy(plain(x))}, {"y": to_numpy(facade(x))})
    same_bits(plain.state(), facade.state())


@pytest.mark.clause("B3")
def test_mode_of_the_facade_is_that_of_the_plain_module(samples, backend):
    model = samples.layer("dropout", rate=0.5)
    run = unigrad.checkpoint(model)
    for training in (True, False):
        backend.block.set_training(run, training)
        assert backend.block.training(model) == backend.block.training(run)
    assert unigrad.wrap(run).eval().training is False


@pytest.mark.clause("B3")
def test_freezing_the_facade_freezes_the_plain_module(samples):
    model = mlp(samples, 3, 4, 2)
    run = unigrad.checkpoint(model)
    unigrad.wrap(run).freeze("0")
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        collector.backward(total(samples, run(samples.tensor(array(4, 3)))))
    assert sorted(collector.gradients) == ["2.bias", "2.weight"]


@pytest.mark.clause("B3")
@pytest.mark.parametrize("how", ["deepcopy", "backend", "block"])
def test_copy_is_checkpointed_and_independent(samples, backend, how):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    run = unigrad.checkpoint(samples.model(forward, parameters={"w": array(3)}))
    twin = {
        "deepcopy": lambda: copy.deepcopy(run),
        "backend": lambda: backend.block.copy(run),
        "block": lambda: copy.deepcopy(unigrad.wrap(run)).native,
    }[how]()
    block = unigrad.wrap(twin)
    block.load_state({"w": 2 * array(3)})
    same_bits(unigrad.wrap(run).state(), {"w": array(3)})
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, twin(samples.tensor(array(3, seed=1)))))
    assert count.calls == 2
    expected = _slope(2 * array(3), array(3, seed=1))
    # Two tanh and four products in float32.
    np.testing.assert_allclose(to_numpy(collector.gradients["w"]), expected, rtol=4e-6)


def _slope(w, x):
    y = np.tanh(w * x)
    return (1 - np.tanh(y) ** 2) * (1 - y**2) * x


@pytest.mark.clause("B3")
def test_copy_of_a_container_keeps_its_checkpoints(samples):
    _, facade = _plain_and_facade(samples)
    twin = copy.deepcopy(facade)
    first, second = unigrad.wrap(facade).train(), unigrad.wrap(twin).train()
    x = array(5, 3)
    same_bits(step(samples, first, first, x), step(samples, second, second, x))
    assert all(first.parameters[name] is not second.parameters[name] for name in first.parameters)


def test_copy_keeps_the_switch(samples):
    run = unigrad.checkpoint(mlp(samples, 3, 4, 2))
    run.enabled = False
    assert copy.deepcopy(run).enabled is False


def test_attributes_are_those_of_the_plain_module(samples):
    model = samples.model(lambda self, x: x * self.w * self.factor, parameters={"w": array(3)})
    model.factor = 2.0
    run = unigrad.checkpoint(model)
    assert run.w is model.w
    assert run.factor == 2.0
    run.factor = 3.0
    x = samples.tensor(array(3, seed=1))
    same_bits({"y": to_numpy(run(x))}, {"y": to_numpy(x * model.w * 3.0)})


@pytest.mark.clause("B1")
def test_same_facade_has_the_same_block(samples):
    run = unigrad.checkpoint(mlp(samples, 3, 4, 2))
    assert unigrad.wrap(run) is unigrad.wrap(run)


@pytest.mark.clause("B1", "G10")
def test_ties_reach_through_facades(samples, record):
    operations = samples.operations
    encoder = samples.model(lambda self, x: operations.tanh(x * self.w), parameters={"w": array(3)})
    decoder = samples.model(lambda self, x: operations.sin(x * self.w), parameters={"w": encoder.w})
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        layers = {"encoder": checkpoint(encoder), "decoder": checkpoint(decoder)}
        block = unigrad.wrap(samples.model(lambda self, x: self.decoder(self.encoder(x)), layers=layers))
        assert dict(block.aliases) == {"decoder.w": "encoder.w"}
        with unigrad.GradientCollector(block) as collector:
            collector.backward(total(samples, block(samples.tensor(array(3, seed=1)))))
        found.append(gradients_of(collector))
    # Two contributions in either order, each of a few float32 products.
    np.testing.assert_allclose(found[1]["encoder.w"], found[0]["encoder.w"], rtol=8 * 2.0**-23)
    record("gradients", found[1], terms=8, reason="two contributions of chains of four operations")


@pytest.mark.clause("C5")
@pytest.mark.needs(Capability.NESTED_CHECKPOINT)
def test_checkpoint_of_a_checkpoint_is_right(samples):
    plain, model = unigrad.wrap(_layers(samples)[0]).train(), _layers(samples)[0]
    twice = unigrad.wrap(unigrad.checkpoint(unigrad.checkpoint(model))).train()
    x = array(5, 3)
    same_bits(step(samples, plain, plain, x), step(samples, twice, twice, x))


@pytest.mark.clause("C5")
def test_same_model_checkpointed_twice(samples):
    model = mlp(samples, 3, 4, 3)
    first, second = unigrad.checkpoint(model), unigrad.checkpoint(model, verify="full")
    found = []
    for runs in ((model, model), (first, second)):
        with unigrad.GradientCollector(model) as collector:
            collector.backward(total(samples, runs[1](runs[0](samples.tensor(array(2, 3))))))
        found.append(gradients_of(collector))
    for name, value in found[0].items():
        # Two contributions in either order; each sums over 2 samples through chains of up to 4 terms.
        bound = 4 * 2 * 4 * np.finfo("float32").eps * np.abs(value).max()
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=bound)

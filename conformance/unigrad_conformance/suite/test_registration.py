"""R1, B8: a parameter is registered by its first use in a recorded forward, however it is used; it lasts."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.protocols import Capability
from unigrad_conformance.suite.block_problems import KINDS, branches, collect, layer_of, vector
from unigrad_conformance.suite.problems import array, dense

pytestmark = pytest.mark.clause("R1")


def through_its_layer(samples):
    return samples.model(lambda self, x: self.a(x), layers={"a": dense(samples, 3, 3), "b": dense(samples, 3, 3)})


def as_argument(samples):
    def forward(self, x):
        return samples.operations.matmul(x, self.a.weight) + self.a.bias

    return samples.model(forward, layers={"a": dense(samples, 3, 3), "b": dense(samples, 3, 3)})


def read_from_a_parent(samples):
    inner = samples.model(lambda self, x: x, parameters={"weight": array(3, 3), "bias": array(3)})
    other = samples.model(lambda self, x: x, parameters={"weight": array(3, 3), "bias": array(3)})

    def forward(self, x):
        return x @ self.a.weight + self.a.bias

    return samples.model(forward, layers={"a": inner, "b": other})


def functionally(samples):
    a, b = dense(samples, 3, 3), dense(samples, 3, 3)
    weight, bias = unigrad.wrap(a).parameters.values()
    return samples.model(lambda self, x: samples.operations.matmul(x, weight) + bias, layers={"a": a, "b": b})


def in_a_list(samples):
    a, b = dense(samples, 3, 3), dense(samples, 3, 3)
    weight, bias = unigrad.wrap(a).parameters.values()

    def forward(self, x):
        ops = samples.operations
        return ops.concat([x, weight], 0) + ops.concat([ops.reshape(bias, (1, 3)), x, x], 0)[:1]

    return samples.model(forward, layers={"a": a, "b": b})


def in_parts(samples):
    a, b = dense(samples, 3, 3), dense(samples, 3, 3)
    weight, bias = unigrad.wrap(a).parameters.values()

    def forward(self, x):
        ops = samples.operations
        return ops.index(weight, 0) * x + ops.index(bias, slice(0, 3))

    return samples.model(forward, layers={"a": a, "b": b})


def in_a_region(samples):
    a, b = dense(samples, 3, 3), dense(samples, 3, 3)
    run = unigrad.checkpoint(lambda x: unigrad.wrap(a)(x), blocks=[a])
    return samples.model(lambda self, x: run(x), layers={"a": a, "b": b})


def in_parts_of_the_batch(samples):
    a, b = dense(samples, 3, 3), dense(samples, 3, 3)
    run = unigrad.microbatch(lambda x: unigrad.wrap(a)(x), 1, blocks=[a])
    return samples.model(lambda self, x: run(x), layers={"a": a, "b": b})


WAYS = {
    "through-its-layer": through_its_layer,
    "as-argument-of-an-operation": as_argument,
    "read-from-a-parent": read_from_a_parent,
    "functionally": functionally,
    "in-a-list": in_a_list,
    "in-parts": in_parts,
    "in-a-checkpoint": in_a_region,
    "in-a-microbatch": in_parts_of_the_batch,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_is_registered_however_it_is_used(samples, record, way):
    block = unigrad.wrap(WAYS[way](samples))
    assert not block.registered
    ops = samples.operations
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = ops.sum(block(samples.tensor(array(2, 3) if way != "in-a-list" else array(1, 3))))
        assert collector.usage.disconnected == ("a.weight", "a.bias")
        assert collector.usage.unused == ("b.weight", "b.bias")
        collector.backward(loss)
    assert block.registered == ("a.weight", "a.bias")
    assert collector.usage.reached == ("a.weight", "a.bias")
    record("registered", list(block.registered))


INPUTS = {
    "dense": lambda samples: samples.tensor(array(2, 3)),
    "conv2d": lambda samples: samples.tensor(array(1, 3, 4, 4)),
    "conv_transpose2d": lambda samples: samples.tensor(array(1, 3, 4, 4)),
    "batch_norm": lambda samples: samples.tensor(array(4, 3)),
    "layer_norm": lambda samples: samples.tensor(array(4, 3)),
    "embedding": lambda samples: samples.tensor(np.array([0, 2, 0], "int64")),
    "lstm": lambda samples: samples.tensor(array(2, 4, 3)),
    "gru": lambda samples: samples.tensor(array(2, 4, 3)),
}


def first_tensor(backend, out):
    while not backend.arrays.is_tensor(out):
        out = out[0]
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_all_parameters_of_a_used_layer_are_registered(samples, backend, kind):
    model = samples.model(
        lambda self, x: self.used(x), layers={"used": layer_of(samples, kind), "idle": layer_of(samples, kind)}
    )
    block = unigrad.wrap(model).train()
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(ops.sin(first_tensor(backend, block(INPUTS[kind](samples))))))
    used = tuple(name for name in block.parameters if name.startswith("used."))
    assert block.registered == used
    assert len(used) == len(KINDS[kind].parameters)
    assert collector.usage.reached == used


def test_parameters_inside_fused_attention_are_registered(samples, backend):
    attention = samples.layer("attention", features=4, heads=2, seed=0)
    model = samples.model(lambda self, x: self.used(x), layers={"used": attention, "idle": dense(samples, 4, 4)})
    block = unigrad.wrap(model)
    own = tuple(name for name in block.parameters if name.startswith("used."))
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(ops.sin(first_tensor(backend, block(samples.tensor(array(2, 3, 4)))))))
    assert own
    assert block.registered == own
    assert set(collector.usage.reached) | set(collector.usage.disconnected) == set(own)


def test_defining_a_layer_registers_nothing(samples):
    block = unigrad.wrap(branches(samples))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        unigrad.wrap(dense(samples, 3, 3))
        assert collector.usage.unused == tuple(block.parameters)
        assert collector.usage.disconnected == ()
    assert block.registered == ()


def test_a_forward_outside_a_collector_registers_nothing(samples):
    block = unigrad.wrap(branches(samples))
    block(samples.tensor(array(2, 3)))
    assert block.registered == ()


def test_a_forward_with_recording_off_registers_nothing(samples):
    block = unigrad.wrap(branches(samples))
    with unigrad.GradientCollector(block, on_unused="ignore"), samples.no_grad():
        block(samples.tensor(array(2, 3)))
    assert block.registered == ()


def test_a_tied_parameter_is_registered_by_any_of_its_uses(samples):
    table = samples.layer("embedding", weight=array(3, 2), padding_index=None)
    weight = unigrad.wrap(table).parameters["weight"]
    head = samples.model(lambda self, x: x * self.weight, parameters={"weight": weight})
    block = unigrad.wrap(samples.model(lambda self, x: self.head(x), layers={"table": table, "head": head}))
    ops = samples.operations
    collect(block, lambda: ops.sum(block(samples.tensor(array(3, 2)))))
    assert block.registered == ("table.weight",)


def test_a_branch_chosen_by_the_data_is_registered_when_it_is_taken(samples):
    def forward(self, x):
        hidden = self.encoder(x)
        return self.left(hidden) if float(samples.operations.sum(x)) > 0 else self.right(hidden)

    layers = {"encoder": dense(samples, 3, 3), "left": dense(samples, 3, 2), "right": dense(samples, 3, 2)}
    block = unigrad.wrap(samples.model(forward, layers=layers))
    ops = samples.operations

    def take(sign):
        x = samples.tensor(np.full((2, 3), sign, "float32"))
        collect(block, lambda: ops.sum(block(x)))
        return block.registered

    first = take(1.0)
    assert first == ("encoder.weight", "encoder.bias", "left.weight", "left.bias")
    assert take(-1.0) == (*first, "right.weight", "right.bias")


def test_a_parameter_behind_a_stopped_gradient_is_used(samples):
    ops = samples.operations
    block = unigrad.wrap(vector(samples, lambda self, x: x * self.a + ops.stop_gradient(self.b), a=[2.0], b=[3.0]))
    collector = collect(block, lambda: ops.sum(block(samples.tensor(array(1)))))
    assert block.registered == ("a", "b")
    assert collector.usage.disconnected == ("b",)


def test_a_frozen_parameter_is_not_recorded(samples):
    block = unigrad.wrap(branches(samples)).freeze("left")
    ops = samples.operations
    collect(block, lambda: ops.sum(block(samples.tensor(array(2, 3)))[0]))
    assert block.registered == ("encoder.weight", "encoder.bias")


def test_a_parameter_used_natively_is_registered(samples):
    model = branches(samples)
    block = unigrad.wrap(model)
    ops = samples.operations
    collect(block, lambda: ops.sum(model(samples.tensor(array(2, 3)))[0]))
    assert block.registered == ("encoder.weight", "encoder.bias", "left.weight", "left.bias")


def test_collectors_that_are_open_together_all_see_a_use(samples):
    first, second = unigrad.wrap(branches(samples)), unigrad.wrap(branches(samples))
    x = samples.tensor(array(2, 3))
    with unigrad.GradientCollector(first, on_unused="ignore") as outer:
        first(x, use=("left",))
        with unigrad.GradientCollector(second, on_unused="ignore"):
            first(x, use=("right",))
            second(x, use=("left",))
    assert outer.usage.unused == ()
    assert first.registered == tuple(first.parameters)
    assert second.registered == ("encoder.weight", "encoder.bias", "left.weight", "left.bias")


def test_a_collector_opened_later_sees_what_is_used_again(samples):
    block = unigrad.wrap(branches(samples))
    x = samples.tensor(array(2, 3))
    with unigrad.GradientCollector(block, on_unused="ignore"):
        block(x)
        with unigrad.GradientCollector(block, on_unused="ignore") as inner:
            assert not inner.usage.disconnected
            block(x)
            assert set(inner.usage.disconnected) == {"encoder.weight", "encoder.bias", "left.weight", "left.bias"}


@pytest.mark.clause("B8")
def test_registered_names_stand_in_the_order_of_the_block(samples):
    block = unigrad.wrap(branches(samples))
    ops = samples.operations
    x = samples.tensor(array(2, 3))
    collect(block, lambda: ops.sum(block(x, use=("right",))[0]))
    collect(block, lambda: ops.sum(block(x, use=("left",))[0]))
    assert block.registered == tuple(block.parameters)


@pytest.mark.clause("B8")
def test_registered_names_last_as_long_as_the_model(samples):
    model = branches(samples)
    ops = samples.operations
    collect(model, lambda: ops.sum(unigrad.wrap(model)(samples.tensor(array(2, 3)))[0]))
    gc.collect()
    expected = ("encoder.weight", "encoder.bias", "left.weight", "left.bias")
    assert unigrad.wrap(model).registered == expected
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:
        collector.zero()
    assert unigrad.wrap(model).registered == expected


@pytest.mark.clause("B8")
def test_a_new_model_starts_with_nothing_registered(samples):
    ops = samples.operations
    x = samples.tensor(array(2, 3))

    def use_one():
        block = unigrad.wrap(branches(samples))
        assert not block.registered  # also where the new model has the address of a dead one
        collect(block, lambda: ops.sum(block(x)[0]))

    for _ in range(20):
        use_one()


@pytest.mark.clause("B8", "B7")
def test_a_mapping_with_a_new_tensor_starts_with_nothing_registered(samples):
    kept = samples.leaf(array(2))

    def use_one():
        block = unigrad.wrap({"kept": kept, "fresh": samples.leaf(array(2))})
        assert not block.registered  # also where the new tensor has the address of a dead one
        collect(block, lambda: samples.operations.sum(kept * block.parameters["fresh"]))
        assert len(block.registered) == 2

    for _ in range(20):
        use_one()


@pytest.mark.clause("B8")
@pytest.mark.needs(Capability.LAZY_LAYERS)
def test_names_of_a_layer_built_inside_are_registered_at_once(samples):
    block = unigrad.wrap(samples.layer("sequential", layers=[samples.layer("lazy_dense", outputs=2, bias=True)]))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        block(samples.tensor(array(1, 3)))
        assert collector.usage.disconnected == ("0.weight", "0.bias")
    assert block.registered == ("0.weight", "0.bias")


@settings(max_examples=25)
@given(used=st.lists(st.integers(0, 4), max_size=6))
def test_exactly_the_used_parameters_are_registered(samples, used):
    names = [f"p{index}" for index in range(5)]

    def forward(self, x, chosen):
        for index in chosen:
            x = x * getattr(self, f"p{index}")
        return x

    block = unigrad.wrap(vector(samples, forward, **{name: [1.5] for name in names}))
    with unigrad.GradientCollector(block, on_unused="ignore"):
        block(samples.tensor(array(1)), used)
    assert block.registered == tuple(name for index, name in enumerate(names) if index in used)

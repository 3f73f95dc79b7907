"""MindSpore's optimizers step what has a gradient, with the state that belongs to it, and nothing else (clauses R4, D2)."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.experimental import optim

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, UnsupportedError


def tensor(values):
    return Tensor(np.array(values, "float32"))


OPTIMIZERS = {
    "SGD": lambda parameters: nn.SGD(parameters, learning_rate=0.1, momentum=0.9, weight_decay=0.01),
    "Momentum": lambda parameters: nn.Momentum(parameters, learning_rate=0.1, momentum=0.9),
    "Adam": lambda parameters: nn.Adam(parameters, learning_rate=0.1),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, learning_rate=0.1, weight_decay=0.01),
    "RMSProp": lambda parameters: nn.RMSProp(parameters, learning_rate=0.1),
    "Adagrad": lambda parameters: nn.Adagrad(parameters, learning_rate=0.1),
    "experimental SGD": lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9),
    "experimental Adam": lambda parameters: optim.Adam(parameters, lr=0.1),
    "experimental AdamW": lambda parameters: optim.AdamW(parameters, lr=0.1, weight_decay=0.01),
}


def leaves():
    # of one name, as parameters of two Cells may be
    return {name: Parameter(tensor(values), name="weight") for name, values in (("a", [1, 2]), ("b", [3, -1]))}


def step(block, optimizer, loss):
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(loss())
        collector.apply(optimizer)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_each_parameter_is_stepped_as_if_it_had_an_optimizer_of_its_own(kind):
    """The reference is one native optimizer for each parameter, stepped where the parameter has a gradient."""
    own, alone = leaves(), leaves()
    native = {name: OPTIMIZERS[kind]([leaf]) for name, leaf in alone.items()}
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind])
    for used in ("ab", "a", "ab", "b", "a", "ab"):
        step(block, optimizer, lambda used=used: ops.sum(sum(own[name] * own[name] for name in used)))
        for name in used:
            native[name]((2 * alone[name],))
        for name in "ab":
            np.testing.assert_array_equal(own[name].asnumpy(), alone[name].asnumpy())


@pytest.mark.parametrize("kind", ["SGD", "Adam", "experimental AdamW"])
def test_a_learning_rate_changed_on_the_native_optimizer_is_that_of_all(kind):
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind])
    step(block, optimizer, lambda: (own["a"] * 1.0).sum())
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    native = optimizer.native
    rate = native.param_groups[0]["lr"] if kind.startswith("experimental") else native.learning_rate
    ops.assign(rate, tensor(0.0))
    before = own["b"].asnumpy().copy()
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    np.testing.assert_array_equal(own["b"].asnumpy(), before)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "experimental AdamW"])
@pytest.mark.parametrize("how", ["load_state", "set_data"])
def test_a_load_between_two_steps_does_not_stop_the_training(kind, how):
    """A compiled optimizer keeps the memory that a parameter had; after ``set_data`` its steps are lost in silence."""
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind])
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    if how == "load_state":
        block.load_state({"a": np.array([5, 6], "float32"), "b": np.array([7, 8], "float32")})
    else:
        own["a"].set_data(tensor([5, 6]))
    step(block, optimizer, lambda: (own["a"] * own["b"]).sum())
    moved = own["a"].asnumpy() - [5, 6]
    assert (np.abs(moved) > 0.05).all()


def test_the_control_a_native_step_after_set_data_is_lost():
    leaf = leaves()["a"]
    native = OPTIMIZERS["SGD"]([leaf])
    native((tensor([1, 1]),))
    leaf.set_data(tensor([5, 6]))
    native((tensor([1, 1]),))
    assert leaf.asnumpy().tolist() == [5, 6], "MindSpore has mended it: reconnect() is not needed any more"


def test_an_optimizer_that_changes_nothing_is_refused():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda parameters: mint.optim.SGD(parameters, lr=0.1))
    with unigrad.GradientCollector(block) as collector:
        collector.backward((own["a"] * own["b"]).sum())
        with pytest.raises(UnsupportedError, match=r"mint\.optim"):
            collector.apply(optimizer)


def test_a_factory_that_returns_something_else():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda parameters: nn.Dense(1, 1))
    with unigrad.GradientCollector(block) as collector:
        collector.backward((own["a"] * own["b"]).sum())
        with pytest.raises(ArgumentTypeError, match="Dense"):
            collector.apply(optimizer)
    assert [leaf.name for leaf in own.values()] == ["weight", "weight"]


def test_a_factory_that_leaves_parameters_out():
    own = leaves()
    block = unigrad.wrap(own)
    optimizer = unigrad.Optimizer(block, lambda parameters: nn.SGD(parameters[:1], 0.1))
    with unigrad.GradientCollector(block) as collector:
        collector.backward((own["a"] * own["b"]).sum())
        with pytest.raises(ArgumentError, match="given 2 parameters, and its optimizer serves 1"):
            collector.apply(optimizer)
    assert own["a"].asnumpy().tolist() == [1, 2]

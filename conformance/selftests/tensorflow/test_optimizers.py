"""The optimizers of Keras go on from their saved state, and late parameters follow the first ones (clauses R4, D2)."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

import unigrad
from unigrad.errors import StateMismatchError, UnsupportedError

X = np.random.default_rng(0).standard_normal((6, 4)).astype("float32")


def halving():
    return optimizers.schedules.ExponentialDecay(0.125, 1, 0.5)


def by_layer(variable):
    return RATES[variable.shape[-1]]


RATES = {}


def several(parameters):
    RATES.update({8: optimizers.Adam(0.01), 3: optimizers.SGD(halving(), momentum=0.5)})
    return optimizers.MultiOptimizer(by_layer)


EXTENDED = {
    "a schedule": lambda parameters: optimizers.SGD(halving()),
    "a schedule and momentum": lambda parameters: optimizers.SGD(halving(), momentum=0.9),
    "Adadelta": lambda parameters: optimizers.Adadelta(0.1),
    "Adafactor": lambda parameters: optimizers.Adafactor(0.1),
    "Adagrad": lambda parameters: optimizers.Adagrad(0.1),
    "Adam": lambda parameters: optimizers.Adam(halving(), amsgrad=True),
    "Adamax": lambda parameters: optimizers.Adamax(0.1),
    "Ftrl": lambda parameters: optimizers.Ftrl(0.1),
    "Lamb": lambda parameters: optimizers.Lamb(0.1),
    "Lion": lambda parameters: optimizers.Lion(0.01),
    "Muon": lambda parameters: optimizers.Muon(0.01),
    "Nadam": lambda parameters: optimizers.Nadam(0.01),
    "RMSprop": lambda parameters: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "ScheduleFreeAdamW": lambda parameters: optimizers.ScheduleFreeAdamW(0.01),
    "averages": lambda parameters: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2),
}
WHOLE = {
    "accumulation": lambda parameters: optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "the norm of all": lambda parameters: optimizers.Adam(0.1, global_clipnorm=0.1),
    "a scaled loss": lambda parameters: optimizers.LossScaleOptimizer(
        optimizers.Adam(halving()), dynamic_growth_steps=2
    ),
    "several": several,
}
"""What works on all parameters together."""


def run_of(factory):
    keras.utils.set_random_seed(1)
    body, late = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(3)]), layers.Dense(3)
    body(X)
    late(X)
    block = unigrad.wrap({**prefixed("body", body), **prefixed("late", late)})
    return block, unigrad.Optimizer(block, factory), body, late


def prefixed(prefix, model):
    return {f"{prefix}.{name}": value for name, value in unigrad.wrap(model).parameters.items()}


def train(run, *steps):
    block, optimizer, body, late = run
    for branches in steps:
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            outputs = [model(X) for name, model in (("body", body), ("late", late)) if name in branches]
            collector.backward(sum(tf.reduce_sum(output**2) for output in outputs))
            collector.apply(optimizer)


def bits(run):
    block, optimizer = run[:2]
    states = {"block": block.state(), "optimizer": optimizer.state()}
    return {f"{part} {name}": value.tobytes() for part, state in states.items() for name, value in state.items()}


def goes_on(factory, path, before, after):
    """Return the end of a run that was saved and loaded, and that of the same run uninterrupted."""
    run, again = run_of(factory), run_of(factory)
    train(run, *before)
    unigrad.save_training(path, *run[:2])
    train(run, *after)
    unigrad.load_training(path, *again[:2])
    train(again, *after)
    return bits(again), bits(run)


@pytest.mark.parametrize("kind", EXTENDED)
def test_a_resumed_run_goes_on_with_the_same_bits(kind, tmp_path):
    """D2, with a branch that came into use later, and steps of either branch alone."""
    found, expected = goes_on(
        EXTENDED[kind], tmp_path / "run", ["body", "body", "body late", "late", "body"], ["late", "body late"]
    )
    assert found == expected


@pytest.mark.parametrize("kind", WHOLE)
def test_a_resumed_run_of_what_works_on_all_together_goes_on_with_the_same_bits(kind, tmp_path):
    """D2."""
    found, expected = goes_on(WHOLE[kind], tmp_path / "run", ["body late"] * 3, ["body late"] * 2)
    assert found == expected


@pytest.mark.parametrize("kind", WHOLE)
def test_what_works_on_all_together_takes_no_further_parameters(kind):
    """R4: two optimizers would take two norms, scale by two numbers, count by two counts."""
    run = run_of(WHOLE[kind])
    train(run, "body")
    before = bits(run)
    with pytest.raises(UnsupportedError, match=r"late\.weight, late\.bias came into use .* nothing was moved"):
        train(run, "body late")
    assert bits(run) == before


def parameters(*names):
    return {name: tf.Variable(1.0) for name in names}


def constant_step(block, optimizer, *names):
    """Do a step in which each of some parameters has the gradient 1."""
    optimizer.step({name: tf.constant(1.0) for name in names})


def test_a_late_parameter_follows_the_schedule_of_all_steps():
    """R4: a schedule of Keras counts the steps of its optimizer, whatever has a gradient in them."""
    block = unigrad.wrap(parameters("early", "late"))
    optimizer = unigrad.Optimizer(block, EXTENDED["a schedule"])
    expected = {"early": 1.0, "late": 1.0}
    for number, used in enumerate([("early",), ("early", "late"), ("late",), ("late",), ("early", "late")]):
        constant_step(block, optimizer, *used)
        for name in used:
            expected[name] -= 0.125 * 0.5**number
    assert {name: float(value) for name, value in block.state().items()} == expected


def test_a_late_parameter_follows_what_the_program_sets():
    """R4: rate and settings of the optimizer that the program sees are those of all."""
    block = unigrad.wrap(parameters("early", "late"))
    optimizer = unigrad.Optimizer(block, lambda parameters: optimizers.SGD(0.5, weight_decay=0.5))
    constant_step(block, optimizer, "early")
    constant_step(block, optimizer, "early", "late")
    optimizer.native.learning_rate = 0.25
    optimizer.native.weight_decay = None
    before = {name: float(value) for name, value in block.state().items()}
    constant_step(block, optimizer, "early", "late")
    assert {name: float(value) for name, value in block.state().items()} == {
        name: value - 0.25 for name, value in before.items()
    }
    optimizer.native.learning_rate = halving()
    constant_step(block, optimizer, "late")
    # three steps were made before
    assert float(block.state()["late"]) == before["late"] - 0.25 - 0.125 * 0.5**3


def test_what_the_program_set_is_in_the_state():
    """D2: what the saved optimizer had is put into the new one, also where the factory differs."""
    block = unigrad.wrap(parameters("early"))
    first, second = (
        unigrad.Optimizer(block, lambda parameters: optimizers.SGD(0.5, momentum=0.5, weight_decay=0.25)) for _ in "ab"
    )
    constant_step(block, first, "early")
    first.native.learning_rate = 0.25
    first.native.weight_decay = 0.125
    second.load_state(first.state())
    assert float(second.native.learning_rate) == 0.25
    assert second.native.weight_decay == 0.125


OTHERS = {
    "a schedule": (lambda parameters: optimizers.SGD(0.5), EXTENDED["a schedule"], "learning_rate"),
    "a rate": (EXTENDED["a schedule"], lambda parameters: optimizers.SGD(0.5), "learning_rate"),
    "no momentum": (lambda parameters: optimizers.SGD(0.5, 0.5), lambda parameters: optimizers.SGD(0.5), "momentum"),
    "no decay": (
        lambda parameters: optimizers.SGD(0.5, weight_decay=0.5),
        lambda parameters: optimizers.SGD(0.5),
        "weight_decay",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_the_state_of_an_optimizer_with_other_variables_changes_nothing(kind):
    """D2: what the state lacks would begin anew in silence."""
    saved, made, what = OTHERS[kind]
    block = unigrad.wrap(parameters("early"))
    first, second = unigrad.Optimizer(block, saved), unigrad.Optimizer(block, made)
    constant_step(block, first, "early")
    constant_step(block, second, "early")
    before = second.state()
    with pytest.raises(StateMismatchError, match=f"{what}.*nothing was changed"):
        second.load_state(first.state())
    assert {name: value.tobytes() for name, value in second.state().items()} == {
        name: value.tobytes() for name, value in before.items()
    }


def test_a_traced_step_follows_the_schedule():
    """G19: the rate of a late parameter is that of the step, not of the trace."""
    block = unigrad.wrap(parameters("early", "late"))
    optimizer = unigrad.Optimizer(block, EXTENDED["a schedule"])
    constant_step(block, optimizer, "early")
    constant_step(block, optimizer, "early", "late")
    traced = tf.function(lambda: constant_step(block, optimizer, "early", "late"))
    before = {name: float(value) for name, value in block.state().items()}
    for _ in range(2):
        traced()
    moved = {name: value - float(block.state()[name]) for name, value in before.items()}
    assert moved == dict.fromkeys(before, 0.125 * (0.25 + 0.125))

"""Clauses G0, G1 and G7: wrong arguments and calls at the wrong time are errors that say what is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, CollectorClosedError
from unigrad_conformance.suite.collecting import collects, f32, leaves, state_of
from unigrad_conformance.suite.problems import dense


@pytest.mark.clause("G1")
@pytest.mark.parametrize("mode", ["Write", "sum", "", None, True, 1, ["add"]], ids=repr)
def test_accumulate_is_write_or_add(samples, mode):
    with pytest.raises(ArgumentError, match=r"'write'.*'add'"):
        unigrad.GradientCollector(dense(samples, 2, 1), mode)


@pytest.mark.clause("R3")
@pytest.mark.parametrize("policy", ["raise", "", None, True], ids=repr)
def test_on_unused_is_one_of_three(samples, policy):
    with pytest.raises(ArgumentError, match=r"warn.*error.*ignore"):
        unigrad.GradientCollector(dense(samples, 2, 1), on_unused=policy)


@pytest.mark.clause("R3")
@pytest.mark.parametrize("patterns", [3, None, [1], ["a", None]], ids=repr)
def test_expect_unused_takes_patterns(samples, patterns):
    with pytest.raises(ArgumentTypeError, match="expect_unused"):
        unigrad.GradientCollector(dense(samples, 2, 1), expect_unused=patterns)


@pytest.mark.clause("G9")
@pytest.mark.parametrize("parameters", [None, 1, "weight", ["weight"]], ids=repr)
def test_parameters_is_a_flag(samples, parameters):
    # A list of parameters, as optimizers take it, would otherwise read as True in silence.
    with pytest.raises(ArgumentTypeError, match="parameters"):
        unigrad.GradientCollector(dense(samples, 2, 1), parameters=parameters)


@pytest.mark.clause("G4", "B7")
@pytest.mark.parametrize(
    "wrong", [None, 3, "model", object(), len], ids=["none", "number", "text", "object", "function"]
)
def test_a_collector_needs_a_block(wrong):
    with pytest.raises(ArgumentTypeError):
        unigrad.GradientCollector(wrong)


@pytest.mark.clause("G4", "B7")
def test_a_bare_tensor_is_no_block(samples):
    with pytest.raises(ArgumentTypeError, match="mapping"):
        unigrad.GradientCollector(samples.leaf(f32([1, 2])))


@pytest.mark.clause("G4", "B7")
def test_a_list_of_tensors_is_no_block(samples):
    with pytest.raises(ArgumentTypeError):
        unigrad.GradientCollector([samples.leaf(f32([1, 2]))])


@pytest.mark.clause("G4", "B7")
def test_an_empty_mapping_is_no_block():
    with pytest.raises(ArgumentError, match="empty"):
        unigrad.GradientCollector({})


@pytest.mark.clause("G4", "B7")
def test_a_mapping_holds_trainable_leaves(samples):
    leaf = samples.leaf(f32([1, 2]))
    for wrong in (samples.tensor(f32([1, 2])), leaf * 2.0):
        with pytest.raises(ArgumentError, match="'x'"):
            unigrad.GradientCollector({"good": leaf, "x": wrong})


@pytest.mark.clause("G4", "B7")
@pytest.mark.parametrize("name", ["", 3, None], ids=repr)
def test_a_mapping_has_texts_as_names(samples, name):
    with pytest.raises(ArgumentTypeError, match="name"):
        unigrad.GradientCollector({name: samples.leaf(f32([1, 2]))})


@pytest.mark.clause("G0")
def test_everything_but_reading_needs_an_entered_collector(samples):
    own = leaves(samples, a=[1, 2])
    collector = unigrad.GradientCollector(own)
    for action in (
        lambda: collector.backward(samples.operations.sum(own["a"])),
        lambda: collector.watch(samples.tensor(f32([1, 2])), "x"),
        collector.zero,
        lambda: collector.scale(2.0),
        lambda: collector.clip_by_global_norm(1.0),
    ):
        with pytest.raises(CollectorClosedError, match="with"):
            action()
    assert dict(collector.gradients) == {}
    assert dict(collector.input_gradients) == {}


@pytest.mark.clause("G0")
def test_backward_watch_and_zero_belong_inside(samples):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, retain_graph=True)
    before = state_of(collector)
    for action in (
        lambda: collector.backward(loss),
        lambda: collector.watch(samples.tensor(f32([1, 2])), "x"),
        collector.zero,
    ):
        with pytest.raises(CollectorClosedError, match="with"):
            action()
    assert state_of(collector) == before


@pytest.mark.clause("G0")
def test_a_collector_is_entered_once(samples):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        with pytest.raises(CollectorClosedError, match="once"), collector:
            raise AssertionError
        collector.backward(samples.operations.sum(own["a"]))
    with pytest.raises(CollectorClosedError, match="once"), collector:
        raise AssertionError
    collects(collector.gradients, a=[1, 1])


BAD_NUMBERS = [
    pytest.param(float("nan"), ArgumentError, id="nan"),
    pytest.param("2", ArgumentTypeError, id="text"),
    pytest.param(None, ArgumentTypeError, id="none"),
    pytest.param(True, ArgumentTypeError, id="flag"),
    pytest.param(np.ones(2), ArgumentTypeError, id="array"),
]


@pytest.mark.clause("G7")
@pytest.mark.parametrize(("factor", "error"), [*BAD_NUMBERS, pytest.param(float("inf"), ArgumentError, id="infinite")])
def test_scale_takes_a_finite_number(samples, factor, error):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0))
        with pytest.raises(error, match="scale"):
            collector.scale(factor)
    collects(collector.gradients, a=[3, 3])


@pytest.mark.clause("G7")
@pytest.mark.parametrize(
    ("maximum", "error"),
    [*BAD_NUMBERS, pytest.param(0, ArgumentError, id="zero"), pytest.param(-1.0, ArgumentError, id="negative")],
)
def test_clip_takes_a_positive_norm(samples, maximum, error):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 3.0))
        with pytest.raises(error, match="clip_by_global_norm"):
            collector.clip_by_global_norm(maximum)
    collects(collector.gradients, a=[3, 3])


@pytest.mark.clause("G4")
def test_options_are_given_by_name(samples):
    with pytest.raises(TypeError):
        unigrad.GradientCollector(dense(samples, 2, 1), "write", False)  # type: ignore[call-arg]  # the mistake under test
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        with pytest.raises(TypeError):
            collector.backward(loss, True)  # type: ignore[call-arg]  # the mistake under test
        collector.backward(loss)


@pytest.mark.clause("G3")
@pytest.mark.parametrize("flag", ["retain_graph", "create_graph"])
def test_flags_of_a_backward_are_true_or_false(samples, flag):
    model = leaves(samples, w=[2, 3])
    with unigrad.GradientCollector(model) as collector:
        loss = samples.operations.sum(model["w"] * model["w"])
        wrongs: list[Any] = ["no", [True], 1.0, loss]
        for wrong in wrongs:
            with pytest.raises(ArgumentTypeError, match=f"{flag} is True or False"):
                collector.backward(loss, **{flag: wrong})
        assert not collector.gradients
        collector.backward(loss)
    collects(collector.gradients, w=[4, 6])


@pytest.mark.clause("G0")
def test_a_collector_is_left_once(samples):
    own = leaves(samples, a=[1, 2])
    with unigrad.GradientCollector(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    with pytest.raises(CollectorClosedError, match="left"):
        collector.__exit__(None, None, None)
    collects(collector.gradients, a=[1, 1])


@pytest.mark.clause("G0", "G15")
def test_a_collector_is_not_left_in_its_own_backward(samples):
    model = dense(samples, 2, 1)
    calls = []

    def function(x):
        calls.append(x)
        if len(calls) == 2:
            collector.__exit__(None, None, None)
        found = model(x)
        return found * found

    run = unigrad.checkpoint(function, blocks=[model])
    with unigrad.GradientCollector(model) as collector:
        loss = samples.operations.sum(run(samples.tensor(f32([[1, 2]]))))
        with pytest.raises(CollectorClosedError, match="while its backward runs"):
            collector.backward(loss)
        collector.backward(loss)
    assert sorted(collector.gradients) == ["bias", "weight"]

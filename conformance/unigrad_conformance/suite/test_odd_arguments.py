"""Clause C5: containers among the arguments are those of the forward, whatever was done to them since."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.collecting import collects, f32, leaves
from unigrad_conformance.suite.problems import to_numpy

pytestmark = pytest.mark.clause("C5")


def collected(samples, call, *arguments, after=lambda: None):
    """Return the gradients of ``w`` where ``call(w, *arguments)`` is a region, ``after`` called before the backward."""
    block = unigrad.wrap(leaves(samples, w=[3, 4]))
    run = unigrad.checkpoint(lambda *given: call(block.parameters["w"], *given), blocks=[block])
    with unigrad.GradientCollector(block) as collector:
        loss = samples.operations.sum(run(*arguments))
        after()
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
    return collector.gradients


def test_a_list_changed_by_the_caller_after_the_call(samples):
    given = [samples.tensor(f32([1, 2]))]
    found = collected(samples, lambda w, items: w * w * items[0], given, after=given.clear)
    collects(found, w=[6, 16])


def test_a_list_that_the_function_itself_makes_longer(samples):
    def call(w, cache):
        cache.append(None)
        return w * w * float(len(cache))

    cache: list[None] = []
    collects(collected(samples, call, cache), w=[6, 8])
    assert len(cache) == 1


@dataclass
class Pair:
    """A container whose second field its constructor does not take."""

    first: Any
    factor: float = field(init=False, default=1.0)


def test_a_dataclass_with_a_field_that_is_not_given(samples):
    pair = Pair(samples.tensor(f32([1, 2])))
    pair.factor = 2.0
    collects(collected(samples, lambda w, given: w * w * given.first * given.factor, pair), w=[12, 32])


def test_a_mapping_that_cannot_be_written(samples):
    given = types.MappingProxyType({"x": samples.tensor(f32([1, 2]))})
    collects(collected(samples, lambda w, mapping: w * w * mapping["x"], given), w=[6, 16])


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_any_name_can_be_that_of_an_argument(samples, parts, native):
    """Names that the library itself uses for arguments among them; ``self`` can only be a function's."""
    names = [
        "forward",
        "function",
        "args",
        "kwargs",
        "run",
        "blocks",
        "backend",
        "verify",
        "model",
        "frozen",
        "training",
    ]
    given = {name: float(number) for number, name in enumerate(names, 2)}
    own = samples.model(lambda _, x, **factors: x * factors["run"] * factors["forward"])
    target = own if native else (lambda x, **factors: x * factors["run"] * factors["forward"] * factors["self"])
    more = {} if native else {"self": samples.tensor(f32([1.0]))}
    make = functools.partial(unigrad.microbatch, size=1, whole=tuple(more)) if parts else unigrad.checkpoint
    run = make(target, blocks=None if native else unigrad.wrap(own))
    found = run(x=samples.tensor(f32([[1], [2]])), **given, **more)
    np.testing.assert_array_equal(to_numpy(found), [[12], [24]])  # times 2 and times 6

"""What a backend declares is true, and every capability and guarantee has a test (clause A6)."""

from __future__ import annotations

import functools
import re
from importlib import resources

import numpy as np
import pytest

import unigrad
from unigrad import UnsupportedError, errors
from unigrad.protocols import Capability, Guarantee
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy

pytestmark = pytest.mark.clause("A6")

DTYPES = ("float32", "float64", "float16", "bfloat16")


@functools.cache
def text_of_the_suite():
    """Return all test files as one text."""
    files = resources.files("unigrad_conformance.suite").iterdir()
    return "\n".join(file.read_text("utf-8") for file in files if file.name.startswith("test_"))


def attributes_in_calls(function, owner):
    """Return the names ``X`` of all ``function(..., owner.X, ...)`` in the tests of the suite."""
    calls = re.findall(rf"\b{function}\(([^()]*)\)", text_of_the_suite())
    return {name for arguments in calls for name in re.findall(rf"\b{owner}\.([A-Z_]+)", arguments)}


def test_every_capability_has_a_test():
    # COMPILED_STEP is tested by the refusal below only: the samples have no way yet to compile a function.
    assert attributes_in_calls("needs", "Capability") | {"COMPILED_STEP"} == {item.name for item in Capability}


def test_every_guarantee_has_a_test():
    assert attributes_in_calls("guarantee", "Guarantee") == {item.name for item in Guarantee}


def test_the_search_finds_what_is_there_and_no_more():
    assert "OWN_GENERATORS" in attributes_in_calls("needs", "Capability")
    assert not attributes_in_calls("needs", "Guarantee")


@pytest.mark.parametrize("which", list(Guarantee), ids=lambda item: item.name.lower())
def test_every_guarantee_is_declared_in_known_words(guarantee, record, which):
    stated = guarantee(which)
    if stated not in ("kept", "undetected"):
        assert issubclass(getattr(errors, stated), errors.UnigradError)
    record("stated", stated, choice=True)


@pytest.mark.parametrize("which", list(Capability), ids=lambda item: item.name.lower())
def test_an_undeclared_capability_is_refused_by_name(backend, which):
    if which in backend.spec.capabilities:
        backend.require(which)
        return
    with pytest.raises(UnsupportedError, match=backend.spec.name) as caught:
        backend.require(which)
    assert which.value in str(caught.value)


def test_dependent_capabilities_are_declared_together(backend):
    declared = backend.spec.capabilities
    if Capability.SECOND_ORDER_CHECKPOINT in declared:
        assert Capability.SECOND_ORDER in declared
    assert ("own_normal" in backend.spec.random_sources) == (Capability.OWN_GENERATORS in declared)


def test_the_default_dtype_is_single_precision(backend):
    assert backend.spec.dtypes[0] == "float32"
    assert set(backend.spec.dtypes) <= set(DTYPES)


@pytest.mark.clause("C9", "G12")
@pytest.mark.dtypes(*DTYPES)
def test_a_declared_dtype_works_everywhere_and_another_is_refused(samples, backend, record, dtype):
    ops = samples.operations
    weight = samples.leaf(np.array([1.0, 2.0, -0.5]), dtype)
    block = unigrad.wrap({"weight": weight})
    x = samples.tensor(np.array([[1.0, 0.5, 2.0], [2.0, 1.0, 4.0]]), dtype)
    calls = {
        "plain": lambda t: t * weight,
        "checkpoint": unigrad.checkpoint(lambda t: t * weight, blocks=block),
        "microbatch": unigrad.microbatch(lambda t: t * weight, 1, blocks=block),
    }
    for name, call in calls.items():
        with unigrad.GradientCollector(block) as collector:
            collector.backward(ops.sum(call(x)))
        gradient = collector.gradients["weight"]
        assert backend.arrays.dtype(gradient) == dtype
        # Column sums of the input, exact in every dtype.
        np.testing.assert_array_equal(to_numpy(gradient).astype(float), [3.0, 1.5, 6.0])
        record(name, gradient, terms=0, reason="small multiples of a half")


@pytest.mark.clause("C9")
@pytest.mark.needs(Capability.MIXED_PRECISION)
def test_mixed_precision_holds_in_a_recompute(samples):
    block = unigrad.wrap(dense(samples, 8, 3))
    x = samples.tensor(array(5, 8))
    found = {}
    for name, call in {"plain": block, "checkpoint": unigrad.checkpoint(block)}.items():
        with unigrad.GradientCollector(block) as collector:
            with samples.mixed_precision("bfloat16"):
                y = call(x)
            loss = samples.operations.sum(samples.operations.cast(y, "float32"))
            # The backward, and so the recompute, runs outside of the context.
            collector.backward(loss)
        found[name] = {"loss": to_numpy(loss), **gradients_of(collector)}
    same_bits(found["checkpoint"], found["plain"])
    full = array(5, 8).astype(float) @ block.state()["weight"].T.astype(float) + block.state()["bias"]
    # Products of numbers of eight bits: the context was on, else the sum would be right to a millionth.
    assert 1e-5 < abs(found["plain"]["loss"] - full.sum()) < 0.5


@pytest.mark.clause("M1")
@pytest.mark.needs(Capability.MIXED_PRECISION)
def test_mixed_precision_holds_in_every_part(samples):
    block = unigrad.wrap(dense(samples, 8, 3))
    x = array(4, 8)
    found = {}
    split = unigrad.microbatch(block, 2)
    for name, call in {
        "loop": lambda: samples.operations.concat([block(samples.tensor(x[:2])), block(samples.tensor(x[2:]))], 0),
        "microbatch": lambda: split(samples.tensor(x)),
    }.items():
        with unigrad.GradientCollector(block) as collector:
            with samples.mixed_precision("bfloat16"):
                y = call()
            collector.backward(samples.operations.sum(samples.operations.cast(y, "float32")))
        found[name] = {"y": to_numpy(samples.operations.cast(y, "float32")), **gradients_of(collector)}
    same_bits({"y": found["microbatch"]["y"]}, {"y": found["loop"]["y"]})
    assert sorted(found["microbatch"]) == sorted(found["loop"])
    for name, value in found["loop"].items():
        # Two parts, each rounded to eight bits.
        np.testing.assert_allclose(found["microbatch"][name], value, rtol=0, atol=2**-7 * np.abs(value).max())


@pytest.mark.clause("Y1")
def test_wrong_arguments_of_kept_bytes(samples):
    with pytest.raises(unigrad.ArgumentError, match="needs a block"):
        unigrad.kept_bytes([])
    with pytest.raises(TypeError):
        unigrad.kept_bytes(3)

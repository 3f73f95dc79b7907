"""Changes in place of a value that a graph needs are noticed, in a region too (clauses G14, C8)."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor

import unigrad
from unigrad.errors import StaleGraphError, UnsupportedError


def tensor(values):
    return Tensor(np.array(values, "float32"))


@pytest.fixture
def leaf():
    return Parameter(tensor([1, 2, 3]), name="leaf")


def assign(value):
    value[0] = 100.0


def copy(value):
    value.copy_(tensor([7, 7, 7]))


CHANGES = {"x[0] = y": assign, "copy_": copy}


def square(x, leaf, change):
    value = leaf * x
    found = value * value
    change(value)
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_of_an_inner_value(leaf, change):
    """MindSpore counts no version where a part is assigned, and gives 400 as the first gradient."""
    with unigrad.GradientCollector({"leaf": leaf}, on_unused="ignore") as collector:
        loss = square(tensor([2, 2, 2]), leaf, CHANGES[change]).sum()
        with pytest.raises(StaleGraphError, match="in place"):
            collector.backward(loss)


@pytest.mark.parametrize("nested", [False, True], ids=["one", "nested"])
@pytest.mark.parametrize("change", CHANGES)
def test_of_an_inner_value_of_a_region(leaf, change, nested):
    """What a hook gives back is not looked at by MindSpore: copy_ alone gives 8, 8, 8 where 8, 16, 24 is right."""
    block = unigrad.wrap({"leaf": leaf})
    run = unigrad.checkpoint(lambda x: square(x, leaf, CHANGES[change]), blocks=[block])
    if nested:
        inner = run
        run = unigrad.checkpoint(lambda x: inner(x) * 1.0, blocks=[block])
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = run(tensor([2, 2, 2])).sum()
        with pytest.raises(StaleGraphError, match="in place"):
            collector.backward(loss)


@pytest.mark.parametrize("change", CHANGES)
def test_of_an_input(leaf, change):
    x = tensor([1, 2, 3])
    with unigrad.GradientCollector({"leaf": leaf}, on_unused="ignore") as collector:
        loss = (leaf * x).sum()
        CHANGES[change](x)
        with pytest.raises(StaleGraphError, match="in place"):
            collector.backward(loss)


@pytest.mark.parametrize("when", ["in the region", "between"])
@pytest.mark.parametrize("change", CHANGES)
def test_of_an_argument_of_a_region(leaf, change, when):
    block, x = unigrad.wrap({"leaf": leaf}), tensor([1, 2, 3])

    def function(x):
        found = leaf * x
        if when == "in the region":
            CHANGES[change](x)
        return found

    run = unigrad.checkpoint(function, blocks=[block])
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        if when == "in the region":
            with pytest.raises(UnsupportedError, match="in place"):
                run(x)
            return
        loss = run(x).sum()
        CHANGES[change](x)
        with pytest.raises(StaleGraphError, match="in place"):
            collector.backward(loss)


@pytest.mark.parametrize("region", [False, True], ids=["plain", "region"])
def test_one_that_no_gradient_needs_is_part_of_the_function(leaf, region):
    """The sum of squares of (5 w1, 2 w1, 2 w2): its derivative is 0, 58 w1, 8 w2."""

    def function(x):
        value = leaf * x
        value[0] = leaf[1] * 5.0
        return value * value

    block = unigrad.wrap({"leaf": leaf})
    run = unigrad.checkpoint(function, blocks=[block]) if region else function
    with unigrad.GradientCollector(block) as collector:
        collector.backward(run(tensor([2, 2, 2])).sum())
    assert collector.gradients["leaf"].asnumpy().tolist() == [0, 116, 24]


def test_outside_of_a_collector_an_assignment_is_mindspores():
    before = Tensor.__setitem__
    with unigrad.GradientCollector({"leaf": Parameter(tensor([1]), name="leaf")}, on_unused="ignore"):
        assert Tensor.__setitem__ is not before
    assert Tensor.__setitem__ is before
    assert "__setitem__" not in vars(Tensor)
    value = tensor([1, 2, 3])
    assign(value)
    assert (value.asnumpy().tolist(), value._version) == ([100, 2, 3], 0)

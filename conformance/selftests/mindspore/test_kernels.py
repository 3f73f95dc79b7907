"""What MindSpore's CPU has no kernel for is refused by name, at the call that caused it and not at a later one."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn
from unigrad_mindspore.in_place import SILENT

import unigrad
from unigrad.errors import UnsupportedError


def tensor(values):
    return Tensor(np.array(values, "float32"))


class Calls(nn.Cell):
    """A dense layer and then a function."""

    def __init__(self, function):
        super().__init__()
        self.dense = nn.Dense(3, 3)
        self.function = function

    def construct(self, x):
        return self.function(self.dense(x))


LATE = {
    "clone": mint.clone,
    "dropout": lambda x: mint.nn.functional.dropout(x, 0.5),
    "layer-norm": lambda x: mint.nn.LayerNorm(3)(x),
    "zero_": lambda x: mindspore.ops.stop_gradient(x).zero_(),
}


@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("inside", [True, False], ids=["collector", "no-collector"])
def test_the_call_that_caused_it_raises_and_the_next_one_works(what, inside):
    bad, good = unigrad.wrap(Calls(LATE[what])), unigrad.wrap(nn.Dense(3, 1))
    x = tensor([[1, 2, 3]])
    if not inside:
        with pytest.raises(UnsupportedError, match=r"no kernel on the CPU for the operation \w+"):
            bad(x)
        good(x)
        return
    with unigrad.GradientCollector(good) as collector:
        with pytest.raises(UnsupportedError, match=r"no kernel on the CPU for the operation \w+"):
            bad(x)
        collector.backward(good(x).sum())
    assert collector.gradients["weight"].asnumpy().tolist() == [[1, 2, 3]]


def test_one_called_natively_raises_there_too():
    block = unigrad.wrap(nn.Dense(3, 1))
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        y = block(tensor([[1, 2, 3]]))
        with pytest.raises(RuntimeError, match="Clone"):
            mint.clone(y)
        collector.backward(y.sum())
    assert collector.gradients["weight"].asnumpy().tolist() == [[1, 2, 3]]


def test_one_from_before_does_not_raise_inside_the_collector():
    block = unigrad.wrap(nn.Dense(3, 1))

    def fail_first():
        mint.clone(tensor([1]))  # MindSpore itself raises here now and then
        with unigrad.GradientCollector(block):
            pytest.fail("the error of an earlier operation came in")

    with pytest.raises((UnsupportedError, RuntimeError), match="Clone"):
        fail_first()
    with unigrad.GradientCollector(block) as collector:
        collector.backward(block(tensor([[1, 2, 3]])).sum())


@pytest.mark.parametrize("name", SILENT)
def test_in_place_arithmetic_writes_nothing_and_so_is_refused_inside(name):
    operands = () if name == "exp_" else (2,)
    x = tensor([2, 4])
    assert getattr(x, name)(*operands) is not None
    assert x.asnumpy().tolist() == [2, 4], "it writes now: it need not be refused any more"
    with (
        unigrad.GradientCollector({"w": mindspore.Parameter(tensor([1]), name="w")}, on_unused="ignore"),
        pytest.raises(UnsupportedError, match=rf"{name}.*x = x"),
    ):
        getattr(x, name)(*operands)
    assert name not in vars(Tensor)
    getattr(x, name)(*operands)

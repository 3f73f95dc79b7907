"""Mixed precision of Cells: an exception does not leave it on, and a recompute has that of its forward (clauses C9, C11, G15)."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from unigrad_mindspore import pynative

import unigrad

X = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")


def tensor(values=X):
    return Tensor(np.array(values, "float32"))


def present():
    """Dtype that an operation computes float32 in now."""
    return ops.matmul(tensor([[1]]), tensor([[1]])).dtype


class Fails(nn.Cell):
    """Raises at the calls that it is told."""

    def __init__(self, *calls):
        super().__init__()
        self.calls, self.count = calls, 0

    def construct(self, x):
        self.count += 1
        if self.count in self.calls:
            raise ZeroDivisionError
        return x * 1.0


def model(*calls, kind=mindspore.float16):
    return nn.SequentialCell(nn.Dense(3, 3), Fails(*calls)).to_float(kind)


KINDS = [mindspore.float16, mindspore.float32, mindspore.bfloat16]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_control_mindspore_leaves_it_on(kind):
    with pytest.raises(ZeroDivisionError):
        model(1, kind=kind)[1](tensor())
    assert len(pynative.precisions()) == 1
    pynative.repair_precisions(0)
    assert not pynative.precisions()
    assert present() == mindspore.float32


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["collector", "no-collector"])
def test_an_error_in_a_blocks_call(kind, inside):
    block, good = unigrad.wrap(model(1, kind=kind)[1]), unigrad.wrap(nn.Dense(3, 1))
    if not inside:
        with pytest.raises(ZeroDivisionError):
            block(tensor())
        assert present() == mindspore.float32
        return
    with unigrad.GradientCollector(good) as collector:
        with pytest.raises(ZeroDivisionError):
            block(tensor())
        collector.backward(good(tensor()).sum())
    np.testing.assert_array_equal(collector.gradients["weight"].asnumpy(), X.sum(0, keepdims=True))


def test_an_error_of_a_native_call_ends_with_the_collector():
    with pytest.raises(ZeroDivisionError), unigrad.GradientCollector(nn.Dense(3, 1), on_unused="ignore"):
        model(1)(tensor())
    assert present() == mindspore.float32


def test_an_error_in_a_recompute():
    block = unigrad.wrap(model(2))
    with unigrad.GradientCollector(block) as collector:
        loss = unigrad.checkpoint(block)(tensor()).astype(mindspore.float32).sum()
        with pytest.raises(ZeroDivisionError):
            collector.backward(loss)
        assert present() == mindspore.float32
        collector.backward(loss)
    assert sorted(collector.gradients) == ["0.bias", "0.weight"]


def test_an_operation_without_a_kernel():
    block = unigrad.wrap(nn.Dense(3, 2).to_float(mindspore.bfloat16))
    for _ in range(2):
        with pytest.raises(unigrad.UnsupportedError, match="MatMul"):
            block(tensor())
        assert present() == mindspore.float32


class Outer(nn.Cell):
    """A Cell whose functional part can be a region."""

    def __init__(self, region):
        super().__init__()
        self.first, self.second = nn.Dense(3, 3), nn.Dense(3, 3)
        self.part = unigrad.checkpoint(self.functional, blocks=[self.second]) if region else self.functional

    def functional(self, x):
        return ops.tanh(ops.matmul(x, self.second.weight)) * 0.3

    def construct(self, x):
        return self.part(ops.tanh(self.first(x)))


WRAPS = {
    "to_float": lambda cell: cell.to_float(mindspore.float16),
    **{
        level: lambda cell, level=level: mindspore.amp.auto_mixed_precision(cell, level, mindspore.float16)
        for level in ("O2", "O3", "auto")
    },
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_region_inside_of_one_is_recomputed_in_it(wrap):
    found = []
    for region in (False, True):
        mindspore.set_seed(3)
        block = unigrad.wrap(WRAPS[wrap](Outer(region)))
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            collector.backward(block(tensor()).astype(mindspore.float32).sum())
        found.append({name: gradient.asnumpy() for name, gradient in collector.gradients.items()})
    plain, rerun = found
    assert sorted(plain) == ["first.bias", "first.weight", "second.weight"]
    for name, gradient in plain.items():
        assert gradient.tobytes() == rerun[name].tobytes()

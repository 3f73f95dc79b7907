"""Recording is on inside a collector only; what switches it off is noticed (clauses G0, G8, G15, G19)."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from unigrad_mindspore import pynative

import unigrad
from unigrad.errors import NoGraphError, RecordingLostError, UnsupportedError

X = np.array([[1, 2, 3], [4, 5, 6]], "float32")


def tensor(values=X):
    return Tensor(np.array(values, "float32"))


@pytest.fixture
def block():
    return unigrad.wrap(nn.Dense(3, 2))


@pytest.fixture
def graph_mode():
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


def natively():
    return mindspore.grad(lambda x: (x * x).sum())(tensor())


def test_a_native_gradient_call_is_noticed_at_the_next_block_call(block):
    with unigrad.GradientCollector(block, on_unused="ignore"):
        natively()
        with pytest.raises(RecordingLostError, match="value_and_grad"):
            block(tensor())


def test_a_native_gradient_call_is_noticed_at_backward(block):
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        loss = block(tensor()).sum()
        natively()
        with pytest.raises(RecordingLostError, match="open the collector anew"):
            collector.backward(loss)
        with pytest.raises(RecordingLostError):  # still: gradients in between may be missing
            collector.backward(loss)
        assert not collector.gradients


def test_a_native_gradient_call_inside_a_model_is_noticed_at_the_end_of_its_call():
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.dense = nn.Dense(3, 2)

        def construct(self, x):
            natively()
            return self.dense(x)

    block = unigrad.wrap(Net())
    with unigrad.GradientCollector(block, on_unused="ignore"), pytest.raises(RecordingLostError):
        block(tensor())


def test_a_collector_opened_afterwards_works(block):
    with unigrad.GradientCollector(block, on_unused="ignore"):
        natively()
    with unigrad.GradientCollector(block) as collector:
        collector.backward(block(tensor()).sum())
    assert collector.gradients["bias"].asnumpy().tolist() == [2, 2]


def test_an_operation_without_a_kernel_leaves_recording_on(block):
    with unigrad.GradientCollector(block) as collector:
        with pytest.raises(Exception, match=r"(?i)kernel"):
            ops.einsum("ij->ji", block.parameters["weight"])
        assert pynative.recording()
        collector.backward(block(tensor()).sum())
    assert sorted(collector.gradients) == ["bias", "weight"]


def test_a_forward_outside_is_told_to_be_outside(block):
    loss = block(tensor()).sum()
    with (
        unigrad.GradientCollector(block, on_unused="ignore") as collector,
        pytest.raises(NoGraphError, match="outside of the collector"),
    ):
        collector.backward(loss)


def test_graph_mode_is_refused(block, graph_mode):
    with pytest.raises(UnsupportedError, match="PYNATIVE_MODE"), unigrad.GradientCollector(block):
        pass
    with pytest.raises(UnsupportedError, match="PYNATIVE_MODE"):
        block(tensor())


def test_a_jitted_part_works_and_its_second_derivative_is_refused():
    """The engine gives 8 for the second derivative of the cube at 2, in silence."""

    @mindspore.jit
    def cube(x):
        return x * x * x

    leaf = Parameter(tensor([2]), name="leaf")
    block = unigrad.wrap({"leaf": leaf})
    with unigrad.GradientCollector(block) as collector:
        loss = cube(leaf).sum()
        with pytest.raises(UnsupportedError, match="jit"):
            collector.backward(loss, create_graph=True)
        collector.backward(loss)
    assert collector.gradients["leaf"].asnumpy().tolist() == [12]


@pytest.mark.parametrize("change", ["bprop", "recompute"])
def test_cells_with_a_gradient_of_their_own_are_refused_by_name(change):
    class Own(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight = Parameter(tensor([1]), name="weight")

        def construct(self, x):
            return x * self.weight

    if change == "bprop":
        Own.bprop = lambda self, x, out, dout: (dout,)
    model = nn.SequentialCell(Own())
    if change == "recompute":
        model[0].recompute()
    with pytest.raises(UnsupportedError, match=f"Own.*{change}"), unigrad.GradientCollector(model):
        pass

"""Recording is on inside a collector only; what switches it off is noticed (clauses G0, G8, G15, G19)."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from unigrad_mindspore import pynative

import unigrad
from unigrad.errors import GraphReleasedError, NoGraphError, RecordingLostError, UnsupportedError

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


class Compiled(nn.Cell):
    """A Cell that is compiled as a whole."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 3)
        self.unused = nn.Dense(3, 2)

    @mindspore.jit
    def construct(self, x):
        return ops.tanh(self.dense(x))


def test_a_compiled_cell_is_released_and_its_unused_layer_is_known():
    """Its node has fewer places for others after a backward than before."""
    model = Compiled()
    found = []
    for call in (model, lambda x: ops.tanh(model.dense(x))):
        block = unigrad.wrap(model)
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            loss = call(tensor()).sum()
            collector.backward(loss)
            with pytest.raises(GraphReleasedError):
                collector.backward(loss)
        assert collector.usage.unused == ("unused.weight", "unused.bias")
        found.append({name: gradient.asnumpy() for name, gradient in collector.gradients.items()})
    assert sorted(found[0]) == ["dense.bias", "dense.weight"]
    for name, gradient in found[0].items():
        np.testing.assert_allclose(gradient, found[1][name], rtol=1e-6)  # fused otherwise


def test_a_compiled_cell_runs_backward_again_only_where_all_its_inputs_need_gradients():
    block = unigrad.wrap(Compiled())
    with unigrad.GradientCollector(block, "add", on_unused="ignore") as collector:
        loss = block(collector.watch(tensor(), name="x")).sum()
        for times in (1, 2, 3):
            collector.backward(loss, retain_graph=times < 3)
            if times == 1:
                once = collector.gradients["dense.weight"].asnumpy().copy()
            np.testing.assert_allclose(collector.gradients["dense.weight"].asnumpy(), times * once, rtol=1e-6)
        loss = block(tensor()).sum()
        collector.backward(loss, retain_graph=True)
        before = collector.gradients["dense.weight"].asnumpy().copy()
        with pytest.raises(UnsupportedError, match="jit"):
            collector.backward(loss)
        np.testing.assert_array_equal(collector.gradients["dense.weight"].asnumpy(), before)


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
    other = unigrad.wrap(nn.Dense(3, 1))
    run = unigrad.checkpoint(lambda x: model(x) * 1.0, blocks=[])
    with unigrad.GradientCollector(other) as collector:
        with pytest.raises(UnsupportedError, match=change):
            run(other(tensor()))
        collector.backward(other(tensor()).sum())


@pytest.mark.parametrize("how", ["jit", "graph mode", "inside another in graph mode"])
def test_a_checkpointed_cell_is_refused_where_its_code_is_read(how, request):
    run = unigrad.checkpoint(nn.SequentialCell(nn.Dense(3, 2), nn.Tanh()))
    outer = nn.SequentialCell(run, nn.Dense(2, 1))
    call = mindspore.jit(lambda_free(run)) if how == "jit" else outer if "inside" in how else run
    wanted = call(tensor()).asnumpy() if how != "jit" else run(tensor()).asnumpy()
    if how != "jit":
        request.getfixturevalue("graph_mode")
    with pytest.raises(UnsupportedError, match="enabled = False"):
        call(tensor())
    run.enabled = False
    np.testing.assert_allclose(call(tensor()).asnumpy(), wanted, rtol=1e-5)


def lambda_free(cell):
    def call(x):
        return cell(x)

    return call

"""Unused layers get nothing, not a gradient and not zeros, whatever hides the use (clauses G6, R1, R2)."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

import unigrad


def tensor(values):
    return Tensor(np.array(values, "float32"))


class Net(nn.Cell):
    """Layers that are used, and that are not, in each way that MindSpore can not tell apart by zeros."""

    def __init__(self):
        super().__init__()
        for name in ("used", "unused", "dropped", "functional", "stopped", "frozen", "silent", "zeroed"):
            setattr(self, name, nn.Dense(3, 3, has_bias=False))
        self.tied = self.used.weight
        self.frozen.weight.requires_grad = False

    def construct(self, x):
        self.dropped(x)
        with mindspore._no_grad():
            x = x + self.silent(x)
        hidden = ops.matmul(self.frozen(self.used(x)), self.functional.weight)
        return hidden + ops.stop_gradient(self.stopped(x)) + self.zeroed(x) * 0.0


def test_exactly_what_the_loss_depends_on_has_a_gradient():
    model = Net()
    block = unigrad.wrap(model)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(block(tensor([[1, 2, 3]])).sum())
    usage = collector.usage
    assert usage.reached == ("used.weight", "functional.weight", "zeroed.weight") or set(usage.reached) == {
        *("tied", "functional.weight", "zeroed.weight")
    }
    assert set(collector.gradients) == set(usage.reached)
    assert set(usage.disconnected) == {"dropped.weight", "stopped.weight"}
    assert set(usage.unused) == {"unused.weight", "silent.weight"}
    assert usage.frozen == ("frozen.weight",)
    assert not collector.gradients["zeroed.weight"].asnumpy().any()


def test_the_control_mindspore_gives_zeros_to_all_of_them():
    model = Net()
    weights = model.trainable_params()
    _, gradients = mindspore.value_and_grad(lambda x: model(x).sum(), None, weights)(tensor([[1, 2, 3]]))
    none = {"unused", "dropped", "stopped", "silent"}
    zeros = {
        weight.name.partition(".")[0] for weight, g in zip(weights, gradients, strict=True) if not g.asnumpy().any()
    }
    assert none <= zeros


PARTS = {
    "index": lambda w: w[0],
    "two-indices": lambda w: w[0, 1],
    "slices": lambda w: w[:, :2],
    "every-second": lambda w: w[::2],
    "concat": lambda w: ops.concat([w, w]),
    "index-of-a-concat": lambda w: ops.concat([w, w])[3],
    "split": lambda w: ops.split(w, 1)[0],
    "narrow": lambda w: ops.narrow(w, 0, 1, 2),
    "transposed": lambda w: w.T,
    "view": lambda w: w.view(9),
    "rows": lambda w: w[Tensor([0, 2])],
    "masked": lambda w: w[w > 0],
    "stacked": lambda w: ops.stack([w, w]),
    "einsum-free-product": lambda w: ops.matmul(w, w),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_parameter_is_a_use_of_it(part):
    """Slices and joins tell no dispatch mode of themselves."""
    w = Parameter(tensor(np.arange(1, 10).reshape(3, 3)), name="w")
    with unigrad.GradientCollector({"w": w}, on_unused="ignore") as collector:
        PARTS[part](w) * 2.0
        assert collector.usage.disconnected == ("w",)
        collector.backward(PARTS[part](w).sum())
    assert collector.usage.reached == ("w",)


def test_a_thousand_graphs_in_one_collector_are_never_taken_for_released():
    """MindSpore gives the numbers of dead nodes to new ones."""
    w = Parameter(tensor([1, 2]), name="w")
    with unigrad.GradientCollector({"w": w}, "add") as collector:
        for _ in range(1000):
            collector.backward((w * w).sum())
    assert collector.gradients["w"].asnumpy().tolist() == [2000, 4000]


def test_marks_live_as_long_as_their_nodes():
    from unigrad_mindspore import marks

    w = Parameter(tensor([1, 2]), name="w")
    before = len(marks._marks)
    with unigrad.GradientCollector({"w": w}) as collector:
        loss = (w * w + w).sum()
        collector.backward(loss)
        assert len(marks._marks) > before
        del loss
        assert len(marks._marks) == before

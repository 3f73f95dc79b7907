"""Sequences that kill a process of plain Paddle: each ends in an error of unigrad's, or works.

Every sequence is a program of its own, which prints ``ok`` at its end. Paddle dies of these with signal 11 and says nothing.
"""

import os
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import warnings
warnings.simplefilter("ignore")
import numpy as np, paddle, unigrad
from paddle import nn
from unigrad import GraphReleasedError, UnsupportedError

class Double(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, a):
        return a * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

def leaf(*values):
    made = paddle.create_parameter([len(values)], "float32")
    made.set_value(np.array(values, "float32"))
    return made

def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")

w = leaf(1, 2)
block = unigrad.wrap({"w": w})
"""

SEQUENCES = {
    "a-retained-pylayer-twice": """
        with unigrad.GradientCollector(block) as collector:
            loss = Double.apply(w * 1.0).sum()
            assert "only once" in refused(UnsupportedError, lambda: collector.backward(loss, retain_graph=True))
            collector.backward(loss)
            refused(GraphReleasedError, lambda: collector.backward(loss))
        assert collector.gradients["w"].tolist() == [2, 2]
    """,
    "a-pylayer-directly-on-the-leaf-twice": """
        with unigrad.GradientCollector(block) as collector:
            loss = Double.apply(w).sum()
            collector.backward(loss)
            refused(GraphReleasedError, lambda: collector.backward(loss))
    """,
    "two-heads-over-a-pylayer": """
        with unigrad.GradientCollector(block) as collector:
            trunk = Double.apply(w * 1.0)
            first, second = trunk.sum(), trunk.mean()
            collector.backward(first)
            del first
            refused(GraphReleasedError, lambda: collector.backward(second))
    """,
    "two-heads-over-a-pylayer-in-two-collectors": """
        trunk = Double.apply(w * 1.0)
        first, second = trunk.sum(), trunk.mean()
        with unigrad.GradientCollector(block) as collector:
            collector.backward(first)
        del first
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            refused(GraphReleasedError, lambda: collector.backward(second))
    """,
    "two-heads-over-a-pylayer-in-one-backward": """
        with unigrad.GradientCollector(block) as collector:
            trunk = Double.apply(w * 1.0)
            collector.backward([trunk.sum(), trunk.mean()])
        assert collector.gradients["w"].tolist() == [3, 3]
    """,
    "inputs-of-a-pylayer-that-has-run": """
        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(paddle.ones([2]), "x")
            loss = Double.apply(w * x).sum()
            collector.backward(loss)
            with unigrad.GradientCollector(block, parameters=False) as inner:
                refused(GraphReleasedError, lambda: inner.backward(loss))
    """,
    "some-inputs-of-a-pylayer": """
        class Product(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a * b
            @staticmethod
            def backward(ctx, gradient):
                a, b = ctx.saved_tensor()
                return gradient * b, gradient * a
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(paddle.full([2], 3.0), "x")
            collector.backward(Product.apply(x, w).sum())
        assert collector.input_gradients["x"].tolist() == [1, 2]
        other = leaf(5, 6)
        with unigrad.GradientCollector(block) as collector:
            assert "no block holds" in refused(UnsupportedError, lambda: collector.backward(Product.apply(w, other).sum()))
        assert w.grad is None and other.grad is None
    """,
    "a-compiled-program-twice": """
        model = paddle.jit.to_static(nn.Linear(2, 2), full_graph=True)
        with unigrad.GradientCollector(model) as collector:
            loss = model(paddle.ones([1, 2])).sum()
            refused(UnsupportedError, lambda: collector.backward(loss, retain_graph=True))
            collector.backward(loss)
            refused(GraphReleasedError, lambda: collector.backward(loss))
        assert sorted(collector.gradients) == ["bias", "weight"]
    """,
    "a-compiled-program-in-a-checkpoint": """
        model = paddle.jit.to_static(nn.Linear(2, 2), full_graph=True)
        run = unigrad.checkpoint(lambda x: model(x).tanh(), blocks=[model])
        with unigrad.GradientCollector(model, on_unused="ignore") as collector:
            assert "to_static" in refused(UnsupportedError, lambda: run(paddle.ones([1, 2])))
    """,
    "prelu-of-a-constant": """
        model = nn.Sequential(nn.PReLU(), nn.Linear(2, 1))
        with unigrad.GradientCollector(model) as collector:
            loss = model(paddle.ones([1, 2])).sum()
            assert "PReLU" in refused(UnsupportedError, lambda: collector.backward(loss))
            collector.backward(model(collector.watch(paddle.ones([1, 2]), "x")).sum())
        assert len(collector.gradients) == 3
    """,
    "prelu-of-a-constant-in-a-checkpoint": """
        model = nn.Sequential(nn.PReLU(), nn.Linear(2, 1))
        with unigrad.GradientCollector(model, on_unused="ignore") as collector:
            refused(UnsupportedError, lambda: unigrad.checkpoint(model)(paddle.ones([1, 2])))
    """,
    "instance-norm-of-a-constant": """
        model = nn.InstanceNorm2D(2)
        with unigrad.GradientCollector(model) as collector:
            loss = model(paddle.randn([1, 2, 3, 3])).square().sum()
            assert "InstanceNorm" in refused(UnsupportedError, lambda: collector.backward(loss))
            collector.backward(model(collector.watch(paddle.randn([1, 2, 3, 3]), "x")).square().sum())
        assert sorted(collector.gradients) == ["bias", "weight"]
    """,
    "a-reentrant-recompute": """
        from paddle.distributed.fleet.utils import recompute
        model = nn.Linear(2, 2)
        with unigrad.GradientCollector(model, on_unused="ignore") as collector:
            x = collector.watch(paddle.ones([1, 2]), "x")
            loss = recompute(model, x).sum()
            assert "unigrad.checkpoint" in refused(UnsupportedError, lambda: collector.backward(loss))
    """,
    "a-pylayer-in-a-checkpoint-several-times": """
        run = unigrad.checkpoint(lambda x: Double.apply(x * w), blocks=[block])
        with unigrad.GradientCollector(block, "add") as collector:
            loss = run(paddle.ones([2])).sum()
            collector.backward(loss, retain_graph=True)
            collector.backward(loss, retain_graph=True)
            collector.backward(loss)
        assert collector.gradients["w"].tolist() == [6, 6]
    """,
    "collectors-of-inputs-inside-each-other": """
        def inner(gradient):
            x = leaf(4)
            with unigrad.GradientCollector({"x": x}, parameters=False) as collector:
                y = collector.watch(x * 1.0, "y")
                collector.backward((y * y * leaf(1)).sum())
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(paddle.ones([2]), "x")
            hidden = x * w
            hidden.register_hook(inner)
            assert "inside another" in refused(UnsupportedError, lambda: collector.backward(hidden.sum()))
        assert paddle.is_grad_enabled()
    """,
    "nested-checkpoints-of-inputs": """
        inner = unigrad.checkpoint(lambda x: (x * w).tanh(), blocks=[block])
        outer = unigrad.checkpoint(lambda x: inner(inner(x)).sin(), blocks=[block])
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(paddle.ones([2]), "x")
            loss = outer(x).sum()
            collector.backward(loss, retain_graph=True)
            first = collector.input_gradients["x"].numpy()
            collector.backward(loss)
        assert (collector.input_gradients["x"].numpy() == first).all()
        native = paddle.ones([2]); native.stop_gradient = False
        (plain,) = paddle.grad(((native * w).tanh() * w).tanh().sin().sum(), native)
        assert np.allclose(plain.numpy(), first, rtol=1e-6)
    """,
    "paddle-grad-through-nested-checkpoints": """
        inner = unigrad.checkpoint(lambda x: (x * w).tanh(), blocks=[block])
        outer = unigrad.checkpoint(lambda x: inner(inner(x)).sin(), blocks=[block])
        x = paddle.ones([2]); x.stop_gradient = False
        loss = outer(x).sum()
        (first,) = paddle.grad(loss, x, retain_graph=True)
        (second,) = paddle.grad(loss, x)
        assert (first.numpy() == second.numpy()).all() and w.grad is None
    """,
    "a-native-gradient-in-a-checkpoint": """
        def penalized(x):
            y = (x * w).tanh()
            (slope,) = paddle.grad(y.sum(), w, retain_graph=True)
            return y * slope.norm()
        with unigrad.GradientCollector(block) as collector:
            collector.backward(unigrad.checkpoint(penalized, blocks=[block])(paddle.ones([2])).sum())
        assert sorted(collector.gradients) == ["w"]
    """,
}


def run(program):
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "GLOG_minloglevel": "3", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", SEQUENCES)
def test_no_sequence_of_calls_ends_the_process(name):
    done = run(f"{HEAD}\n{textwrap.dedent(SEQUENCES[name])}\nprint('ok')")
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr[-3000:]


def test_the_control_does_end_the_process():
    """Plain Paddle dies, so the tests above can fail."""
    done = run(f"{HEAD}\nloss = Double.apply(w).sum()\nloss.backward(retain_graph=True)\nloss.backward()\nprint('ok')")
    assert done.returncode != 0
    assert "ok" not in done.stdout


@pytest.mark.parametrize("order", ["tensorflow", "torch", "paddle"])
def test_an_import_order_that_ends_the_process_is_refused(order):
    """A5: paddle is not imported after tensorflow; other orders work."""
    done = run(
        f"import warnings; warnings.simplefilter('ignore')\nimport sys, {order}, unigrad\n"
        "try:\n    unigrad.get_backend('paddle')\n    print('works')\n"
        "except unigrad.BackendImportOrderError as error:\n    print('refused', 'paddle' in sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == (["refused", "False"] if order == "tensorflow" else ["works"])

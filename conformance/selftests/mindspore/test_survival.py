"""Sequences that end a process of MindSpore, or hang it: each ends in an error of unigrad's, or works.

Every sequence is a program of its own, which prints ``ok`` at its end.
"""

import subprocess
import sys
import textwrap

import pytest

HEAD = """
import os, warnings
os.environ["GLOG_v"] = "4"
warnings.simplefilter("ignore")
import numpy as np, mindspore, unigrad
from mindspore import Parameter, Tensor, nn, ops
from unigrad import GraphReleasedError

def tensor(values):
    return Tensor(np.array(values, "float32"))

def refused(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""

NATIVE = {
    "a None among the gradients of Adam": """
        a, b = (Parameter(tensor([1, 2]), name=name) for name in "ab")
        nn.Adam([a, b], 0.1)((tensor([1, 1]), None))
    """,
    "an operation that fails inside a Cell of to_float, which goes on": """
        class Net(nn.Cell):
            def construct(self, x):
                try:
                    ops.matmul(x, x)
                    mindspore.graph.api._pynative_executor.sync()
                except RuntimeError:
                    return x
        x = tensor(np.ones((4, 3)))
        for _ in range(20):
            Net().to_float(mindspore.float16)(x)
            assert (x * 1.0).dtype == mindspore.float32
    """,
}

SEQUENCES = {
    "an absent gradient in a step of Adam": """
        a, b = (Parameter(tensor([1, 2]), name="same") for name in "ab")
        block = unigrad.wrap({"a": a, "b": b})
        optimizer = unigrad.Optimizer(block, lambda parameters: nn.Adam(parameters, 0.1))
        for loss in (lambda: (a * b).sum(), lambda: (a * a).sum(), lambda: (b * b).sum(), lambda: (a * b).sum()):
            before = {name: p.asnumpy().copy() for name, p in block.parameters.items()}
            with unigrad.GradientCollector(block, on_unused="ignore") as collector:
                collector.backward(loss())
                collector.apply(optimizer)
            for name, p in block.parameters.items():
                assert (p.asnumpy() != before[name]).all() == (name in collector.gradients)
    """,
    "dropout of an input that lives on": """
        w = Parameter(tensor(np.ones((64, 64))), name="w")
        with unigrad.GradientCollector({"w": w}) as collector:
            hidden = w * 2.0
            run = unigrad.checkpoint(lambda x: ops.dropout(x, 0.5) + nn.Dropout(p=0.5).set_train()(x))
            kept = [hidden, ops.dropout(hidden, 0.5), run(hidden)]
            collector.backward(sum(one.sum() for one in kept))
    """,
    "a function of the user's own, differentiated again after its release": """
        class Nothing(mindspore._Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return tensor(np.zeros((0, 2)))
            @staticmethod
            def backward(ctx, gradient):
                return ops.zeros_like(ctx.saved_tensors[0])
        w = Parameter(tensor([1, 2]), name="w")
        with unigrad.GradientCollector({"w": w}) as collector:
            for _ in range(20):
                trunk = Nothing.apply(Nothing.apply(w * 1.0) * 1.0)
                first, second = trunk.sum(), (trunk * 2.0).sum()
                collector.backward(first)
                refused(GraphReleasedError, lambda: collector.backward(first))
                refused(GraphReleasedError, lambda: collector.backward(second))
                del trunk, first, second
    """,
    "a value on a released function of the user's own, used again": """
        class Square(mindspore._Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x
            @staticmethod
            def backward(ctx, gradient):
                return 2.0 * ctx.saved_tensors[0] * gradient
        block, x = unigrad.wrap(nn.Dense(3, 2)), tensor(np.ones((4, 3)))
        double = unigrad.checkpoint(lambda value: value * 2.0, blocks=[])
        with unigrad.GradientCollector(block) as collector:
            value = Square.apply(block(x))
            collector.backward(value.sum())
            for use in (
                lambda: collector.watch(value, name="value"),
                lambda: double(value),
                lambda: unigrad.checkpoint(lambda given: given * value, blocks=[])(tensor([1, 1])),
                lambda: collector.backward((value * 2.0).sum()),
            ):
                refused(GraphReleasedError, use)
            collector.backward(block(x).sum())
    """,
    "a collector, and a generator with one, open at the end": """
        def generate():
            with unigrad.GradientCollector(nn.Dense(3, 2), on_unused="ignore") as inner:
                yield inner
        kept = generate()
        next(kept)
        unigrad.GradientCollector(nn.Dense(3, 2)).__enter__()
    """,
    "a failing function in the middle of a backward, and again": """
        class Fails(mindspore._Function):
            @staticmethod
            def forward(ctx, x):
                return x * 1.0
            @staticmethod
            def backward(ctx, gradient):
                raise ZeroDivisionError
        w = Parameter(tensor([1, 2]), name="w")
        with unigrad.GradientCollector({"w": w}, on_unused="ignore") as collector:
            loss = (Fails.apply(w * 2.0) * 3.0).sum()
            refused(ZeroDivisionError, lambda: collector.backward(loss, retain_graph=True))
            refused(ZeroDivisionError, lambda: collector.backward(loss))
            collector.backward((w * w).sum())
    """,
    "a second thread": """
        import threading
        from unigrad import UnsupportedError
        block = unigrad.wrap(nn.Dense(3, 1))
        told = []
        def work():
            try:
                with unigrad.GradientCollector(unigrad.wrap(nn.Dense(3, 1))) as collector:
                    collector.backward(collector.block(tensor([[1, 2, 3]])).sum())
                told.append("worked")
            except UnsupportedError as error:
                told.append("threads" in str(error))
        def start():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        with unigrad.GradientCollector(block) as collector:
            start()
            collector.backward(block(tensor([[1, 2, 3]])).sum())
        start()
        assert told == [True, "worked"], told
    """,
    "a Block that fails inside a Cell of to_float, which goes on": """
        block = unigrad.wrap(nn.Dense(3, 2))
        class Net(nn.Cell):
            def construct(self, x):
                refused((ValueError, RuntimeError, TypeError), lambda: block(tensor(np.ones((4, 6)))))
                assert (x * 1.0).dtype == mindspore.float16
                return x * 1.0
        net, x = Net().to_float(mindspore.float16), tensor(np.ones((4, 3)))
        for _ in range(20):
            net(x)
            assert (x * 1.0).dtype == mindspore.float32
            with unigrad.GradientCollector(block) as collector:
                net(x)
                collector.backward(block(x).sum())
                assert (x * 1.0).dtype == mindspore.float32
    """,
    "graphs of many operations, released, retained and dropped": """
        w = Parameter(tensor([1, 2]), name="w")
        with unigrad.GradientCollector({"w": w}) as collector:
            for keep in (False, True, None):
                y = w * 1.0
                for _ in range(20000):
                    y = y + 1.0
                if keep is not None:
                    collector.backward(y.sum(), retain_graph=keep)
                del y
    """,
    "an interrupt while a region is recomputed": """
        block = unigrad.wrap(nn.Dense(3, 3))
        calls = []
        def function(x):
            calls.append(1)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return ops.tanh(block(x))
        run = unigrad.checkpoint(function, blocks=[block])
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            loss = run(tensor([[1, 2, 3]])).sum()
            refused(KeyboardInterrupt, lambda: collector.backward(loss))
            collector.backward(loss)
        assert sorted(collector.gradients) == ["bias", "weight"]
    """,
}


def run(program, head=HEAD):
    code = head + textwrap.dedent(program) + "\nprint('ok')\n"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("what", NATIVE)
def test_the_control_plain_mindspore_fails_or_dies_of_it(what):
    assert run(NATIVE[what]).returncode != 0


@pytest.mark.parametrize("what", SEQUENCES)
def test_it_works(what):
    done = run(SEQUENCES[what])
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr[-3000:]


def test_mindspore_after_paddle_is_refused_before_it_is_imported():
    program = """
        import warnings
        warnings.simplefilter("ignore")
        import sys, paddle, unigrad
        try:
            unigrad.get_backend("mindspore")
        except unigrad.BackendImportOrderError as error:
            assert "paddle" in str(error) and "mindspore" not in sys.modules
    """
    done = run(program, head="")
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr[-3000:]


def test_loading_says_nothing():
    done = run("from unigrad_conformance.quiet import load; load('mindspore')", head="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")

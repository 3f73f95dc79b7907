"""Sequences that kill a process of plain Paddle: each ends in an error of unigrad's, or works.

Every sequence runs in a process of its own. Paddle dies of these with signal 11 and says nothing.
"""

import json
import os
import subprocess
import sys

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
paddle.disable_signal_handler()  # which would write pages of its own
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
    "a-reentrant-recompute-in-a-region": """
        from paddle.distributed.fleet.utils import recompute
        model = nn.Linear(2, 2)
        for run in (
            unigrad.checkpoint(lambda x: recompute(model, x), blocks=[model]),
            unigrad.microbatch(lambda x: recompute(model, x), blocks=[model], size=1),
        ):
            with unigrad.GradientCollector(model, on_unused="ignore") as collector:
                x = collector.watch(paddle.ones([2, 2]), "x")
                assert "unigrad.checkpoint" in refused(UnsupportedError, lambda: run(x))
        run = unigrad.checkpoint(lambda x: recompute(model, x, use_reentrant=False), blocks=[model])
        with unigrad.GradientCollector(model) as collector:
            collector.backward(run(paddle.ones([2, 2])).sum())
        assert sorted(collector.gradients) == ["bias", "weight"]
    """,
    "paddle-grad-inside-paddle-grad-in-a-pylayer": """
        def differentiated(function):
            class Made(paddle.autograd.PyLayer):
                @staticmethod
                def forward(ctx, a):
                    ctx.save_for_backward(a)
                    return a * a
                @staticmethod
                def backward(ctx, gradient):
                    (a,) = ctx.saved_tensor()
                    b = a.detach()
                    b.stop_gradient = False
                    with paddle.enable_grad():
                        y = function(b).sum()
                    return paddle.grad(y, [b])[0] * gradient
            return Made
        once = differentiated(lambda b: b * b)
        twice = differentiated(once.apply)
        with unigrad.GradientCollector(block) as collector:
            assert "inside another" in refused(UnsupportedError, lambda: collector.backward(twice.apply(w * 1.0).sum()))
            collector.backward(once.apply(w * 1.0).sum())
        assert collector.gradients["w"].tolist() == [2, 4]
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(paddle.ones([2]), "x")
            collector.backward(once.apply(w * x).sum())  # by the engine of Tensor.backward
        assert collector.input_gradients["x"].tolist() == [2, 8]
    """,
    "a-model-in-dataparallel-twice": """
        paddle.distributed.init_parallel_env()
        model = nn.Linear(2, 2)
        for outer in (paddle.DataParallel(model), paddle.DataParallel(paddle.DataParallel(model))):
            with unigrad.GradientCollector(unigrad.wrap(outer)) as collector:
                collector.backward(outer(paddle.ones([1, 2])).sum())
            assert sorted(collector.gradients) == ["bias", "weight"]
    """,
    "a-long-chain-in-regions": """
        def add(x):
            for _ in range(20_000):
                x = x + 1.0
            return x
        with unigrad.GradientCollector(block) as collector:
            y = w * 1.0
            for _ in range(8):
                y = unigrad.checkpoint(add, blocks=[])(y)
            collector.backward(y.sum())
        assert collector.gradients["w"].tolist() == [1, 1]
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
    "a-pylayer-that-was-retained-outside-of-a-collector": """
        loss = Double.apply(w * 1.0).sum()
        loss.backward(retain_graph=True)
        with unigrad.GradientCollector(block) as collector:
            assert "outside of a collector" in refused(GraphReleasedError, lambda: collector.backward(loss))
        with unigrad.GradientCollector(block, parameters=False) as collector:
            x = collector.watch(paddle.ones([2]), "x")
            loss = Double.apply(x * w).sum()
            loss.backward(retain_graph=True)
            refused(GraphReleasedError, lambda: collector.backward(loss))
    """,
    "one-head-over-a-pylayer-outside-of-a-collector": """
        trunk = Double.apply(w * 1.0)
        trunk.sum().backward()
        with unigrad.GradientCollector(block) as collector:
            refused(GraphReleasedError, lambda: collector.backward(trunk.mean()))
    """,
    "a-pylayer-inside-a-pylayer-that-was-retained": """
        class Outer(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, a):
                return Double.apply(a) + 1
            @staticmethod
            def backward(ctx, gradient):
                return gradient * 2
        loss = Outer.apply(w * 1.0).sum()
        loss.backward(retain_graph=True)
        with unigrad.GradientCollector(block) as collector:
            refused(GraphReleasedError, lambda: collector.backward(loss))
            collector.backward(Outer.apply(w * 1.0).sum())
        assert collector.gradients["w"].tolist() == [2, 2]
    """,
    "a-pylayer-after-paddle-grad": """
        loss = Double.apply(w * 1.0).sum()
        paddle.grad(loss, w)
        with unigrad.GradientCollector(block) as collector:
            collector.backward(loss)
        assert collector.gradients["w"].tolist() == [2, 2]
    """,
    "a-pylayer-whose-context-somebody-keeps": """
        kept = []
        class Keeps(Double):
            @staticmethod
            def forward(ctx, a):
                kept.append(ctx)
                return a * 2
        loss = Keeps.apply(w * 1.0).sum()
        paddle.grad(loss, w)
        with unigrad.GradientCollector(block) as collector:
            collector.backward(loss)
            again = Keeps.apply(w * 1.0).sum()
            again.backward(retain_graph=True)
            refused(GraphReleasedError, lambda: collector.backward(again))
    """,
    "outputs-of-a-pylayer-inside-of-lists": """
        class Nested(paddle.autograd.PyLayer):
            @staticmethod
            def forward(ctx, a):
                return a * 2, [a * 3, a * 4]
            @staticmethod
            def backward(ctx, gradient, others):
                return gradient * 2
        with unigrad.GradientCollector(block) as collector:
            loss = Nested.apply(w * 1.0)[0].sum()
            assert "flat tuple" in refused(UnsupportedError, lambda: collector.backward(loss))
    """,
    "hooks-that-return-no-tensor": """
        for wrong in (1, 1.0, False, "text", np.ones(2, "float32"), [paddle.ones([2])]):
            for parameters in (True, False):
                with unigrad.GradientCollector(block, parameters=parameters) as collector:
                    hidden = collector.watch(w * 1.0, "hidden") * 2
                    hook = hidden.register_hook(lambda gradient: wrong)
                    loss = hidden.sum()
                    text = refused(unigrad.ArgumentTypeError, lambda: collector.backward(loss, retain_graph=True))
                    assert repr(wrong) in text, text
                    hook.remove()
                    collector.backward(loss)
                    assert collector.input_gradients["hidden"].tolist() == [2, 2]
        refused(unigrad.ArgumentTypeError, lambda: w.register_hook(3))
    """,
    "a-hook-of-a-leaf-that-returns-no-tensor": """
        w.register_hook(lambda gradient: np.ones(2, "float32"))
        with unigrad.GradientCollector(block) as collector:
            refused(unigrad.ArgumentTypeError, lambda: collector.backward(w.sum()))
            refused(unigrad.ArgumentTypeError, lambda: collector.backward(unigrad.checkpoint(lambda x: x * w)(paddle.ones([2])).sum()))
    """,
    "paddle-grad-in-a-hook-of-a-collector-of-inputs": """
        def inner(gradient):
            x = leaf(4)
            paddle.grad(x * x, x)
        for parameters in (True, False):
            with unigrad.GradientCollector(block, parameters=parameters) as collector:
                hidden = collector.watch(paddle.ones([2]), "x") * w
                hidden.register_hook(inner)
                if parameters:  # the engine of Tensor.backward serves
                    collector.backward(hidden.sum())
                else:
                    assert "inside another" in refused(UnsupportedError, lambda: collector.backward(hidden.sum()))
    """,
    "paddle-grad-over-a-checkpoint-with-paddle-grad": """
        def penalized(x):
            y = (x * w).tanh()
            (slope,) = paddle.grad(y.sum(), w, retain_graph=True)
            return y * slope.norm()
        x = leaf(3, 4)
        loss = unigrad.checkpoint(penalized, blocks=[block])(x * 1.0).sum()
        assert "inside another" in refused(UnsupportedError, lambda: paddle.grad(loss, x))
        loss.backward()
        assert x.grad is not None
    """,
    "paddle-grad-in-several-threads": """
        import threading
        def train():
            with_checkpoint = unigrad.checkpoint(lambda x: x.tanh(), blocks=[])
            for _ in range(100):
                x = leaf(1, 2)
                paddle.grad((with_checkpoint(x * x) * x).sum(), x)
        threads = [threading.Thread(target=train) for _ in range(3)]
        [thread.start() for thread in threads]
        with unigrad.GradientCollector(block, parameters=False) as collector:
            for _ in range(100):
                x = collector.watch(paddle.ones([2]), "x")
                collector.backward((x * w).tanh().sum())
        [thread.join() for thread in threads]
    """,
    "training-with-checkpoints-in-several-threads": """
        import threading
        X = paddle.ones([4, 6])
        def train():
            model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6))
            optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
            run = unigrad.checkpoint(model)
            for _ in range(40):
                (run(X) ** 2).sum().backward()
                optimizer.step()
                optimizer.clear_grad(set_to_zero=False)
        threads = [threading.Thread(target=train, daemon=True) for _ in range(3)]
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
        assert not any(thread.is_alive() for thread in threads)
    """,
    "a-graph-that-a-collector-released": """
        run = unigrad.checkpoint(lambda x: (x * w).tanh(), blocks=[block])
        for form in (run, lambda x: (x * w).exp(), lambda x: x * w + 1):
            with unigrad.GradientCollector(block) as collector:
                loss = form(paddle.ones([2])).sum()
                collector.backward(loss)
            for again in (lambda: loss.backward(), lambda: paddle.grad(loss, w), lambda: loss.backward(retain_graph=True)):
                text = refused((GraphReleasedError, SystemError), again)
                assert form is not run or "released" in text
                assert paddle.is_grad_enabled()
        assert w.grad is None
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


SERVER = """
import json, os, signal, sys, textwrap, traceback
found = {}
for name, sequence in json.load(sys.stdin).items():
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(writer, 2)
        ended = 1
        signal.alarm(100)
        try:
            exec(textwrap.dedent(sequence), globals())
            ended = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(ended)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as told:
        text = told.read()
    found[name] = (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text)
print(json.dumps(found))
"""
"""Runs each sequence in a child of its own, so that Paddle is imported once."""

CONTROLS = {
    "a PyLayer twice": "loss = Double.apply(w).sum()\nloss.backward(retain_graph=True)\nloss.backward()",
    "a long chain": "y = w * 1.0\nfor _ in range(160_000):\n    y = y + 1.0\ndel y",
}


def run(program, given=None):
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "GLOG_minloglevel": "3", "OMP_NUM_THREADS": "1"},
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def ends():
    """How the process of each sequence ended, and what it told."""
    done = run(f"{HEAD}\n{SERVER}", json.dumps({**SEQUENCES, **CONTROLS}))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SEQUENCES)
def test_no_sequence_of_calls_ends_the_process(ends, name):
    code, told = ends[name]
    assert code == 0, told[-3000:]


@pytest.mark.parametrize("name", CONTROLS)
def test_the_control_does_end_the_process(ends, name):
    """Plain Paddle dies, so the tests above can fail. Of the chain it is a limit: a collector can't prevent it."""
    assert ends[name][0] < 0


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

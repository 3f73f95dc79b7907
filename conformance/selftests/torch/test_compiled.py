"""Inside torch.compile all is refused by name; a compiled model, or a part of one, is served exactly (clauses G19, C12, G6, R2)."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn
from unigrad_torch import compiled_graph

import unigrad
from unigrad.errors import GraphReleasedError, UnsupportedError

X = torch.tensor([[1.0, 2.0, -1.0], [3.0, 5.0, 0.5], [0.25, -2.0, 1.0]])

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own, about what it can't compile


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def enter(model):
    with unigrad.GradientCollector(model, on_unused="ignore"):
        pass


@pytest.mark.parametrize("whole", [False, True], ids=["breaks-allowed", "full-graph"])
@pytest.mark.parametrize(
    "what", ["collector", "entered", "checkpoint", "function", "microbatch", "made-inside", "part"]
)
def test_refused_inside(what, whole):
    model = nn.Linear(3, 1)
    rerun, parts = unigrad.checkpoint(model), unigrad.microbatch(model, 1)
    collector = unigrad.GradientCollector(model, on_unused="ignore")
    function = unigrad.checkpoint(lambda x: model(x).tanh(), blocks=[model])

    def entered(x):
        with collector:
            return model(x)

    inside = {
        "collector": lambda x: [enter(model), model(x)][1],
        "entered": entered,
        "checkpoint": lambda x: rerun(x) + 1,
        "function": lambda x: function(x) + 1,
        "microbatch": lambda x: parts(x) + 1,
        "made-inside": lambda x: unigrad.checkpoint(model)(x),
        "part": nn.Sequential(rerun, nn.Linear(1, 1)),
    }[what]
    error, text = UnsupportedError, r"inside torch\.compile"
    if what == "entered" and whole:  # the compiler knows no such context and says so before it reads it
        error, text = torch._dynamo.exc.Unsupported, "GradientCollector"
    with pytest.raises(error, match=text):
        torch.compile(inside, backend="eager", fullgraph=whole)(X)


MEMBERS = {
    "backward": lambda collector, x: collector.backward(x.sum()),
    "watch": lambda collector, x: collector.watch(x, name="x"),
    "write_back": lambda collector, x: collector.write_back(),
    "zero": lambda collector, x: collector.zero(),
    "kept_bytes": lambda collector, x: unigrad.kept_bytes(collector.block),
}


@pytest.mark.parametrize("whole", [False, True], ids=["breaks-allowed", "full-graph"])
@pytest.mark.parametrize("member", MEMBERS)
def test_a_collector_that_was_opened_outside_is_not_used_inside(member, whole):
    model = nn.Linear(3, 1)
    with unigrad.GradientCollector(model, on_unused="ignore") as collector:

        def function(x):
            out = model(x)
            MEMBERS[member](collector, out)
            return out

        with pytest.raises(UnsupportedError, match=r"inside torch\.compile"):
            torch.compile(function, backend="eager", fullgraph=whole)(X)
        collector.backward(model(X).sum())
    assert set(collector.gradients) == {"weight", "bias"}


FRESH = """
import sys, torch, unigrad
model = torch.nn.Linear(3, 1)
def collector(x):
    with unigrad.GradientCollector(model) as collector:
        loss = model(x).sum()
        collector.backward(loss)
    return collector.gradients["weight"]
inside = {
    "collector": collector,
    "checkpoint": lambda x: unigrad.checkpoint(model)(x) + 1,
    "microbatch": lambda x: unigrad.microbatch(model, 1)(x) + 1,
}
assert "unigrad_torch.tape" not in sys.modules
for name in sys.argv[2:]:
    for whole in (sys.argv[1] == "full", sys.argv[1] != "full"):
        torch._dynamo.reset()
        try:
            torch.compile(inside[name], backend="eager", fullgraph=whole)(torch.ones(2, 3))
        except unigrad.UnsupportedError as error:
            assert "inside torch.compile" in str(error), error
            print("refused", name, whole)
"""


@pytest.mark.parametrize("order", [("full", "collector", "checkpoint"), ("breaks", "microbatch", "collector")])
def test_refused_where_nothing_of_unigrad_was_used_before(order, tmp_path):
    """The backend is loaded while the compiler reads the function."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", FRESH, *order],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 4, done.stdout + done.stderr


def test_the_mark_that_has_the_compiler_call_is_the_one_that_torch_sets():
    from unigrad.tracing import refuse_traced

    def function():
        pass

    torch.compiler.assume_constant_result(function)
    assert vars(function).items() <= vars(refuse_traced).items()


def test_control_without_recording_a_checkpoint_in_a_compiled_function_is_the_plain_call():
    model = nn.Linear(3, 1)
    rerun = unigrad.checkpoint(model)
    compiled = torch.compile(lambda x: rerun(x) + 1, backend="eager")
    with torch.no_grad():
        assert torch.equal(compiled(X), model(X) + 1)
    rerun.enabled = False
    assert torch.equal(compiled(X), model(X) + 1)


class Heads(nn.Module):
    """Two heads on a trunk, one of which shares its weight with another layer, and a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.one, self.two, self.never = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)
        self.tied = nn.Linear(4, 2)
        self.tied.weight = self.one.weight

    def forward(self, x):
        hidden = self.norm(self.body(x)).tanh()
        return {"one": self.one(hidden) * self.tied(hidden), "two": self.two(hidden), "best": hidden.argmax(1)}


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def heads():
    torch.manual_seed(0)
    return Heads()


def by_torch_compile(model):
    return torch.compile(model, backend="aot_eager")


def by_method(model):
    model.compile(backend="aot_eager")
    return model


def as_a_part(model):
    return Around(torch.compile(model, backend="aot_eager"))


FORMS = {"torch.compile": by_torch_compile, "compile-method": by_method, "part": as_a_part}
LOSSES = {
    "both": lambda out: (out["one"] ** 2).sum() + (out["two"] ** 2).sum(),
    "first": lambda out: (out["one"] ** 2).sum(),
    "second": lambda out: (out["two"] ** 2).sum(),
    "times-zero": lambda out: (out["one"] ** 2).sum() + 0 * out["two"].sum(),
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def gradients_and_usage(model, call, loss, **options):
    with unigrad.GradientCollector(model, on_unused="ignore", **options) as collector:
        collector.backward(loss(call(X)))
    return {name.removeprefix("inner."): value for name, value in collector.gradients.items()}, collector.usage


@pytest.mark.parametrize("loss", LOSSES)
def test_a_compiled_model_has_the_names_gradients_and_buffers_of_the_plain_one(form, loss):
    """Heads whose output no loss uses are absent, though the compiler made one node of all."""
    plain, own = heads(), heads()
    made = form(own)
    expected, eager = gradients_and_usage(plain, plain, LOSSES[loss])
    for _ in range(2):
        own.load_state_dict(heads().state_dict())
        found, usage = gradients_and_usage(made, made, LOSSES[loss])
        assert list(found) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)  # decomposed operations round otherwise
        assert [name.removeprefix("inner.") for name in usage.reached] == list(eager.reached)
        assert {"never.weight", "never.bias"} <= {name.removeprefix("inner.") for name in usage.unused}
        assert own.norm.num_batches_tracked == plain.norm.num_batches_tracked == 1
        torch.testing.assert_close(own.norm.running_var, plain.norm.running_var)


def test_a_collector_on_the_model_inside_serves_calls_of_the_compiled_one():
    plain, own = heads(), heads()
    compiled = by_torch_compile(own)
    expected, _ = gradients_and_usage(plain, plain, LOSSES["first"])
    found, _ = gradients_and_usage(own, compiled, LOSSES["first"])
    assert list(found) == list(expected)


def test_an_unused_head_does_not_move_with_a_compiled_model():
    """R4: with zeros in place of none, decay would move it."""
    model = heads()
    compiled = by_torch_compile(model)
    before = model.two.weight.detach().clone()
    optimizer = unigrad.Optimizer(compiled, lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.5))
    for loss in ("first", "first"):
        with unigrad.GradientCollector(compiled, on_unused="ignore") as collector:
            collector.backward(LOSSES[loss](compiled(X)))
            collector.apply(optimizer)
    assert torch.equal(model.two.weight, before)


def test_two_losses_of_one_compiled_call():
    model, plain = heads(), heads()
    compiled = by_torch_compile(model)
    results = []
    for call in (compiled, plain):
        with unigrad.GradientCollector(call, "add", on_unused="ignore") as collector:
            out = call(X)
            collector.backward(LOSSES["first"](out), retain_graph=True)
            assert not any(name.startswith("two") for name in collector.gradients)
            collector.backward(LOSSES["second"](out))
            with pytest.raises(GraphReleasedError):
                collector.backward(LOSSES["both"](out))
        results.append(collector.gradients)
    assert list(results[0]) == list(results[1])
    for name, value in results[1].items():
        torch.testing.assert_close(results[0][name], value)


def test_sizes_that_vary_inputs_that_need_gradients_and_frozen_layers():
    model, plain = heads(), heads()
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    for item in (model, plain):
        unigrad.wrap(item).freeze("body")
    for size in (3, 5, 7):
        x = torch.linspace(-1, 1, 3 * size).reshape(size, 3)
        results = []
        for call in (compiled, plain):
            with unigrad.GradientCollector(call, on_unused="ignore") as collector:
                collector.backward(LOSSES["second"](call(collector.watch(x, name="x"))))
            results.append({**collector.gradients, **collector.input_gradients})
        assert list(results[0]) == list(results[1]) == ["norm.weight", "norm.bias", "two.weight", "two.bias", "x"]
        for name, value in results[1].items():
            torch.testing.assert_close(results[0][name], value)


def test_views_of_outputs_and_values_that_a_break_parts():
    torch.manual_seed(0)
    first, second, third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
    block = unigrad.join(first=first, second=second, third=third)

    @torch.compile(backend="aot_eager")
    def function(x):
        hidden = first(x)
        torch._dynamo.graph_break()
        out = second(hidden)
        return out, out.t(), third(hidden), hidden.detach()

    for pick, names in ((1, ["first", "second"]), (2, ["first", "third"])):
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            collector.backward(function(X)[pick].pow(2).sum())
        assert sorted({name.partition(".")[0] for name in collector.gradients}) == names


def test_where_torch_does_not_say_it_is_refused(monkeypatch):
    """Another version of torch may keep its traced backward elsewhere."""

    def changed(information):
        raise AttributeError("bw_module")

    monkeypatch.setattr(compiled_graph, "_backward_graph", changed)
    model = heads()
    compiled = by_torch_compile(model)
    with unigrad.GradientCollector(compiled, on_unused="ignore") as collector:
        out = compiled(X)
        with pytest.raises(UnsupportedError, match="only some outputs of a compiled function"):
            collector.backward(LOSSES["first"](out))
        assert not collector.gradients
        collector.backward(LOSSES["both"](out))
    assert "two.weight" in collector.gradients


INDUCTOR = """
import json, torch, unigrad
from torch import nn
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)
    def forward(self, x):
        hidden = self.body(x).tanh()
        return self.one(hidden), self.two(hidden)
torch.manual_seed(0)
model = Heads()
x = torch.ones(5, 3)
found = []
for call in (model, torch.compile(model)):
    with unigrad.GradientCollector(call, on_unused="ignore") as collector:
        collector.backward(call(x)[0].pow(2).sum())
    found.append({name: value.tolist() for name, value in collector.gradients.items()})
print(json.dumps(found))
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_the_default_compiler_and_its_cache(tmp_path):
    """The second process reads what the first has compiled. A compilation takes some ten seconds; the tests above do without."""
    results = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", INDUCTOR],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout.splitlines()[-1]))
    for plain, compiled in results:
        assert list(compiled) == list(plain) == ["body.weight", "body.bias", "one.weight", "one.bias"]
        for name, value in plain.items():
            torch.testing.assert_close(torch.tensor(compiled[name]), torch.tensor(value))

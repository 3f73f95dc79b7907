"""What only this backend promises of its adapter: exact bytes, one recompute a backward, memory of regions and facades."""

import copy
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import unigrad_numpy
from unigrad_numpy import arrays, block, checkpoint, nn, ops, optim, optimizer, rng
from unigrad_numpy.graph import base_of, walk
from unigrad_numpy.tensor import Parameter, Tensor

import unigrad
from unigrad.errors import CreatedParameterError
from unigrad.interface import check_interface
from unigrad.protocols import Capability
from unigrad.recompute import in_recompute

ACTIVATION = 64 * 16 * 4


def network(layers=6):
    return nn.Sequential(*[part for _ in range(layers) for part in (nn.Dense(16, 16), nn.ReLU())])


def data():
    return Tensor(np.random.default_rng(0).standard_normal((64, 16)).astype("float32"))


def kept(model, run, x):
    with unigrad.kept_bytes(model) as meter:
        y = run(x)
    assert y.requires_grad
    return meter.bytes / ACTIVATION


def test_every_function_of_the_protocols_is_there():
    assert check_interface(unigrad.get_backend("numpy")) == []


def test_the_declaration_is_read_without_the_rest_of_the_package():
    code = (
        "import sys, unigrad_numpy; unigrad_numpy.unigrad_backend(); "
        "print([name for name in sys.modules if name.startswith('unigrad_numpy.')]); unigrad_numpy.Tensor; "
        "print('unigrad_numpy.tensor' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:2] == ["[]", "True"]
    assert all(hasattr(unigrad_numpy, name) for name in unigrad_numpy.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = unigrad_numpy.nothing


def test_what_is_refused():
    """Clause A6: a longer list fails; docs/contract.md gives the reason for each."""
    refused = set(Capability) - unigrad_numpy.unigrad_backend().capabilities
    assert refused == {
        Capability.SECOND_ORDER,
        Capability.SECOND_ORDER_CHECKPOINT,
        Capability.COMPILED_STEP,
        Capability.MIXED_PRECISION,
    }


def test_kept_bytes_are_exact():
    """Clause Y1: one activation a layer, as relu keeps its own result, which is the next layer's input."""
    model, x = network(), data()
    assert kept(model, model, x) == 6
    # One region keeps its output alone: its input existed before.
    assert kept(model, unigrad.checkpoint(model), x) == 1
    assert kept(model, unigrad.microbatch(model, size=8), x) == 1


def test_regions_in_a_region_keep_nothing_of_their_own():
    model, x = network(4), data()
    halves = [unigrad.checkpoint(nn.Sequential(*list(model)[start : start + 4])) for start in (0, 4)]
    assert kept(model, lambda t: halves[1](halves[0](t)), x) == 2
    assert kept(model, unigrad.checkpoint(lambda t: halves[1](halves[0](t)), blocks=[model]), x) == 1


def test_a_backward_recomputes_once_whatever_it_needs():
    """Cases 17 and 54."""
    calls = {"inner": 0, "outer": 0}

    def inner(t):
        calls["inner"] += 1
        return ops.sin(t) * t

    def outer(t):
        calls["outer"] += 1
        return unigrad.checkpoint(inner)(t) ** 2

    x = Parameter(np.array([1.5]))
    with unigrad.GradientCollector({"x": x}, accumulate="add") as collector:
        loss = ops.sum(unigrad.checkpoint(outer)(x))
        for turn in range(3):
            collector.backward(loss, retain_graph=turn < 2)
            assert collector.gradients["x"].item() == pytest.approx(3.302509 * (turn + 1), rel=1e-6)
            # One forward, one recompute a backward; the inner one runs in the outer recompute and in its own.
            assert calls == {"outer": 2 + turn, "inner": 3 + 2 * turn}
        with pytest.raises(unigrad.GraphReleasedError):
            collector.backward(loss)
    assert calls == {"outer": 4, "inner": 7}


def test_a_recompute_dies_as_it_is_used():
    """Clause M6: one part's activations are alive at a time, also where only the input's gradient is wanted."""
    model, x = network(4), data()
    alive, most = [], 0

    class Probe(nn.Module):
        def forward(self, t):
            nonlocal most
            if in_recompute():
                most = max(most, sum(ref() is not None for ref in alive))
                alive.append(weakref.ref(base_of(t._array)))
            return t

    for parameters in (True, False):
        alive.clear()
        most = 0
        parts = unigrad.microbatch(nn.Sequential(*list(model)[:4], Probe(), *list(model)[4:]), size=8)
        with unigrad.GradientCollector(model, parameters=parameters, on_unused="ignore") as collector:
            watched = collector.watch(x, name="x")
            collector.backward(ops.sum(parts(watched)))
        assert len(alive) == 8
        assert most <= 1


def test_a_created_parameter_is_named_by_its_shape():
    x = Parameter(np.ones((2, 3), np.float32))
    with unigrad.GradientCollector({"x": x}) as collector:
        loss = ops.sum(unigrad.checkpoint(lambda t: nn.Dense(3, 5)(t) * t.sum())(x))
        with pytest.raises(CreatedParameterError, match=r"\(5, 3\)"):
            collector.backward(loss)


def test_a_parameter_frozen_after_the_forward_changes_no_recompute():
    model = network(2)
    with unigrad.GradientCollector(model) as collector:
        loss = ops.sum(unigrad.checkpoint(model)(data()))
        model[2].weight.requires_grad = False
        collector.backward(loss)
    assert "0.weight" in collector.gradients
    assert not model[2].weight.requires_grad


def test_fingerprints_see_every_bit_and_every_place():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    marks = [x, x.T, x[::-1], np.where(x == 5, np.nextafter(x, x + 1), x), np.where(x == 0, -x, x), x.astype("float64")]
    assert len({checkpoint.fingerprint(Tensor(one)) for one in marks}) == len(marks)
    assert checkpoint.fingerprint(Tensor(x)) == checkpoint.fingerprint(Tensor(x.T.copy().T))


def test_nothing_is_left_without_the_garbage_collector():
    """Clause G15: no reference cycle through regions, nodes or collectors."""
    model = network(3)
    gc.collect()
    gc.disable()
    try:
        with unigrad.GradientCollector(model) as collector:
            hidden = unigrad.checkpoint(model)(data())
            loss = ops.sum(hidden * hidden)
            refs = [weakref.ref(node) for node in walk([loss]).nodes] + [weakref.ref(hidden._array)]
            collector.backward(loss, retain_graph=True)
            del hidden, loss
        del collector
        assert [ref() for ref in refs if ref() is not None] == []
    finally:
        gc.enable()


def test_a_facade_is_the_plain_module_in_all_but_its_forward():
    plain = nn.Sequential(nn.Dense(2, 3), nn.BatchNorm(3))
    calls = []
    made = block.facade(plain, lambda forward, *args: (calls.append(args), forward(*args))[1])
    assert isinstance(made, nn.Sequential)
    assert type(made).__name__ == "Sequential"
    assert [name for name, _ in made.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert made[0] is plain[0]
    made.eval()
    assert not plain.training
    made.extra = nn.Dense(1, 1)
    assert "extra" in dict(plain.named_modules())
    del made.extra
    x = Tensor(np.ones((2, 2), np.float32))
    assert np.array_equal(made(x).data, plain(x).data)
    assert len(calls) == 1
    twin = copy.deepcopy(made)
    twin(x)
    assert len(calls) == 2
    assert twin[0] is not made[0]
    made.enabled = False
    made(x)
    assert len(calls) == 2
    assert made.enabled is False
    holder = nn.Sequential(made, nn.ReLU())
    assert "0.0.weight" in dict(holder.named_parameters())


def test_structure_is_described_anew_only_after_a_change():
    model = nn.Sequential(nn.Dense(2, 2), nn.LazyDense(3), nn.BatchNorm(3))
    model.source = np.random.default_rng(0)
    known = block.structure(model)
    assert block.structure(model, known) is known
    assert known.pending == ("1",)
    assert list(known.norms) == ["2"]
    assert list(known.generators) == ["source"]
    assert [entry.role for entry in known.parameters] == ["dense"] * 4 + ["norm"] * 2
    assert [entry.tensor is None for entry in known.parameters] == [False, False, True, True, False, False]

    changes = [
        lambda: model(Tensor(np.ones((2, 2), np.float32))),
        lambda: setattr(model[0], "weight", Parameter(np.ones((2, 2)))),
        lambda: setattr(model[0], "bias", None),
        lambda: model[2].register_buffer("running_mean", Tensor(np.zeros(3, np.float32))),
        lambda: model.append(nn.ReLU()),
        lambda: setattr(model, "source", np.random.default_rng(1)),
    ]
    for change in changes:
        change()
        fresh = block.structure(model, known)
        assert fresh is not known
        assert block.structure(model, fresh) is fresh
        known = fresh


def test_a_buffer_in_two_places_is_swapped_and_put_back():
    norm = nn.BatchNorm(1)
    model = nn.Sequential(norm, norm)
    entries = [*block.structure(model).buffers] * 2
    live = [entry.tensor for entry in entries]
    before = block.swap(entries, [arrays.clone(tensor) for tensor in live])
    assert norm.running_mean is not live[0]
    block.swap(entries, before)
    assert norm.running_mean is live[0]


def test_optimizer_state_moves_as_copies():
    parameter = Parameter(np.array([1.0, 2.0]))
    for native in (optim.AdamW([parameter]), optim.SGD([parameter], momentum=0.9)):
        assert dict(optimizer.state_of(native, parameter)) == {}
        optimizer.step(native, [(parameter, Tensor(np.array([1.0, 1.0])))])
        assert parameter.grad is None
        state = optimizer.state_of(native, parameter)
        other = type(native)([parameter])
        portable = {k: v.numpy() if isinstance(v, Tensor) else np.array(v) for k, v in state.items()}
        optimizer.set_state_of(other, parameter, portable)
        again = optimizer.state_of(other, parameter)
        assert {k: getattr(v, "_array", np.array(v)).tolist() for k, v in again.items()} == {
            k: v.tolist() for k, v in portable.items()
        }


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_random_states_move_as_bytes(kind):
    generator = np.random.Generator(kind(3))
    generator.random(5, dtype=np.float32)
    state = rng.generator_state(generator)
    expected = generator.random(4, dtype=np.float32)
    portable = rng.to_portable(state)
    assert portable.dtype == np.uint8
    assert portable.ndim == 1
    rng.set_generator_state(generator, rng.from_portable(portable))
    assert np.array_equal(generator.random(4, dtype=np.float32), expected)
    with pytest.raises(ValueError, match=r"."):
        rng.from_portable(portable[:-3])
    with pytest.raises(ValueError, match="not the state"):
        rng.from_portable(np.frombuffer(b"{}", np.uint8))


def test_a_facade_hides_no_member_of_the_model_and_has_shallow_copies():
    plain = nn.Sequential(nn.Dense(2, 2))
    plain.plain, plain.run = nn.Dense(2, 2), nn.Dense(2, 2)
    calls = []
    made = block.facade(plain, lambda forward, *args: (calls.append(args), forward(*args))[1])
    assert made.plain is plain.plain
    assert made.run is plain.run
    twin = copy.copy(made)
    assert twin[0] is plain[0]
    twin(Tensor(np.ones((2, 2), np.float32)))
    assert len(calls) == 1
    twin.enabled = False
    assert made.enabled

"""D2: a run saved after a step and loaded in a new process goes on with the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, StateFileError, StateMismatchError
from unigrad_conformance.suite.block_problems import branches, collect, state_bits
from unigrad_conformance.suite.optimizer_problems import OPTIMIZERS
from unigrad_conformance.suite.problems import array, dense, same_bits
from unigrad_conformance.suite.resume_problems import HALF, STEPS, Run

pytestmark = pytest.mark.clause("D2")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.safetensors"


KINDS = ("sgd-momentum-decay", "adamw")


def in_new_process(backend, action, folder):
    program = ["-P", "-m", "unigrad_conformance.suite.resume_problems"]
    done = subprocess.run(
        [sys.executable, *program, backend.spec.name, action, str(folder), *KINDS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.rsplit("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_a_new_process_goes_on_with_the_same_bits(backend, tmp_path):
    """Dropout, running statistics, own and registered generators, and a branch that comes into use on either side."""
    saved = in_new_process(backend, "save", tmp_path)
    loaded = in_new_process(backend, "load", tmp_path)
    for kind in KINDS:
        assert {f"{kind} draws", f"{kind} loss {STEPS - 1}", f"{kind} optimizer served"} <= set(saved)
    assert loaded == saved


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_made_anew_goes_on_with_the_same_bits(samples, backend, path, kind):
    data = np.random.default_rng(3)
    run = Run(backend, samples, kind, data)
    for number in range(HALF):
        run.step(number)
    unigrad.save_training(path, run.block, run.optimizer)
    expected = [run.step(number) for number in range(HALF, STEPS)], run.bits(), run.draws()
    other = Run(backend, samples, kind, data)
    unigrad.load_training(path, other.block, other.optimizer)
    assert ([other.step(number) for number in range(HALF, STEPS)], other.bits(), other.draws()) == expected


def stepped(samples, kind="adamw"):
    """Return a block and its optimizer after two steps on the left branch and one on both."""
    block = unigrad.wrap(branches(samples))
    optimizer = unigrad.Optimizer(block, OPTIMIZERS[kind].factory(samples))
    for use in (("left",), ("left",), ("left", "right")):
        step(samples, block, optimizer, use)
    return block, optimizer


def step(samples, block, optimizer, use=("left", "right")):
    ops = samples.operations
    x = samples.tensor(array(2, 3))
    collect(block, lambda: sum(ops.sum(out * out) for out in block(x, use=use)) * 1.0).apply(optimizer)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_state_of_an_optimizer_moves_as_arrays(samples, kind):
    block, optimizer = stepped(samples, kind)
    twin = unigrad.wrap(branches(samples, seed=50))
    other = unigrad.Optimizer(twin, OPTIMIZERS[kind].factory(samples))
    twin.load_state(block.state())
    other.load_state(optimizer.state())
    assert other.served == optimizer.served
    assert other.with_state == optimizer.with_state
    same_bits(other.state(), optimizer.state())
    for _ in range(2):
        step(samples, block, optimizer)
        step(samples, twin, other)
    assert state_bits(twin) == state_bits(block)
    same_bits(other.state(), optimizer.state())


def test_the_state_of_an_optimizer_is_a_copy(samples):
    block, optimizer = stepped(samples)
    before = optimizer.state()
    for value in optimizer.state().values():
        value[...] = 1
    same_bits(optimizer.state(), before)
    other = unigrad.Optimizer(block, OPTIMIZERS["adamw"].factory(samples))
    given = optimizer.state()
    other.load_state(given)
    for value in given.values():
        value[...] = 1
    same_bits(other.state(), before)


def test_an_optimizer_before_its_first_step_moves_too(samples):
    block, optimizer = stepped(samples)
    fresh = unigrad.Optimizer(unigrad.wrap(branches(samples)), OPTIMIZERS["adamw"].factory(samples))
    optimizer.load_state(fresh.state())
    assert optimizer.native is None
    assert optimizer.served == ()
    step(samples, block, optimizer)
    assert set(optimizer.with_state) == set(block.parameters)


def spoil_name(state):
    state["nowhere/exp"] = np.zeros(2, "float32")


def spoil_kind(state):
    described = json.loads(state["served"].tobytes())
    state["served"] = np.frombuffer(json.dumps({**described, "optimizer": "Elsewhere"}).encode(), np.uint8)


def spoil_shape(state):
    text = state["served"].tobytes().decode().replace('["left.weight", [2, 4]]', '["left.weight", [4, 2]]')
    state["served"] = np.frombuffer(text.encode(), np.uint8)


def spoil_served(state):
    del state["served"]


def spoil_text(state):
    state["served"] = state["served"][:-3]


def own_entry(state):
    """Return the name of an array that belongs to one parameter and has its shape."""
    return next(name for name, value in state.items() if name.startswith("left.weight/") and value.ndim)


def spoil_by_loss(state):
    del state[own_entry(state)]


def spoil_setting(state):
    del state[
        min(set(state) - {"served"})
    ]  # what belongs to no single parameter comes first, where there is such a thing


def spoil_entry_shape(state):
    state[own_entry(state)] = state[own_entry(state)][:1]


def spoil_entry_dtype(state):
    state[own_entry(state)] = state[own_entry(state)].astype("float16")


def spoil_mask(state):
    name = next(name for name in state if name != "served")
    state[name] = np.ma.masked_array(state[name], mask=True)


def spoil_dtype(state):
    described = json.loads(state["served"].tobytes())
    described["dtypes"]["encoder.weight"] = "float64"
    state["served"] = np.frombuffer(json.dumps(described).encode(), np.uint8).copy()


SPOIL = [spoil_mask, spoil_dtype, spoil_name, spoil_kind, spoil_shape, spoil_served, spoil_text]
SPOIL += [spoil_by_loss, spoil_setting, spoil_entry_shape, spoil_entry_dtype]


@pytest.mark.parametrize("spoil", SPOIL)
def test_a_state_that_does_not_fit_changes_nothing(samples, spoil):
    _, optimizer = stepped(samples)
    state = optimizer.state()
    spoil(state)
    _, other = stepped(samples)
    before, native = other.state(), other.native
    with pytest.raises(StateMismatchError, match="nothing was changed"):
        other.load_state(state)
    assert other.native is native
    same_bits(other.state(), before)


def test_a_state_of_another_model_names_what_differs(samples):
    _, optimizer = stepped(samples)
    other = unigrad.Optimizer(unigrad.wrap(dense(samples, 3, 2)), OPTIMIZERS["adamw"].factory(samples))
    with pytest.raises(StateMismatchError, match=r"encoder\.weight: the block has no such parameter"):
        other.load_state(optimizer.state())
    wrong: Any = [1]
    with pytest.raises(ArgumentTypeError, match="mapping"):
        other.load_state(wrong)


def test_saving_changes_nothing(samples, backend, path):
    data = np.random.default_rng(3)
    start = data.bit_generator.state
    results = []
    for save in (False, True):
        data.bit_generator.state = start
        run = Run(backend, samples, "adamw", data)
        losses = []
        for number in range(HALF):
            if save:
                unigrad.save_training(path, run.block, run.optimizer)
            losses.append(run.step(number))
        results.append((losses, run.bits(), run.draws()))
    assert results[0] == results[1]


def test_what_the_program_adds_comes_back(samples, path):
    block, optimizer = stepped(samples)
    extra = {"step": 3, "rates": [0.1, 1e-300], "schedule": {"last_epoch": 2, "name": None}}
    unigrad.save_training(path, block, optimizer, extra)
    assert unigrad.load_training(path, block, optimizer) == extra
    for wrong in ({"array": np.zeros(2)}, {"milestones": {30: 1}}, {"list": [{None: 1}]}):
        with pytest.raises(ArgumentTypeError, match="JSON"):
            unigrad.save_training(path, block, optimizer, wrong)
    assert unigrad.load_training(path, block, optimizer) == extra


def test_a_block_can_be_read_alone(samples, path):
    """The weights of a run, for use without training."""
    block, optimizer = stepped(samples)
    unigrad.save_training(path, block, optimizer)
    twin = unigrad.wrap(branches(samples, seed=50))
    twin.load(path)
    assert state_bits(twin) == state_bits(block)


def test_an_optimizer_is_not_left_out_in_silence(samples, path):
    block, optimizer = stepped(samples)
    unigrad.save_training(path, block, optimizer)
    with pytest.raises(ArgumentError, match="holds the state of an optimizer"):
        unigrad.load_training(path, block)
    unigrad.save_training(path, block)
    with pytest.raises(StateMismatchError, match="without an optimizer"):
        unigrad.load_training(path, block, optimizer)


def everything(block, optimizer):
    return state_bits(block), {name: value.tobytes() for name, value in optimizer.state().items()}


def other_shape(path):
    arrays = safetensors.numpy.load_file(path)
    rewrite(path, {**arrays, "block/left.bias": np.zeros(3, "float32")})


def other_optimizer(path):
    arrays = safetensors.numpy.load_file(path)
    spoil_kind(state := {"served": arrays["optimizer/served"]})
    rewrite(path, {**arrays, "optimizer/served": state["served"]})


def no_random(path):
    arrays = safetensors.numpy.load_file(path)
    rewrite(path, {name: value for name, value in arrays.items() if name != "random/python"})


def spoilt_random(path):
    arrays = safetensors.numpy.load_file(path)
    rewrite(path, {**arrays, "random/native": arrays["random/native"][:-5]})


def other_generators(path):
    arrays = safetensors.numpy.load_file(path)
    rewrite(path, {**arrays, "random/own/elsewhere": arrays["random/native"]})


def rewrite(path, arrays):
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    safetensors.numpy.save_file(arrays, path, header["__metadata__"])


def drawn(samples, backend):
    """Return the bits of some random numbers."""
    return backend.arrays.to_numpy(samples.operations.normal((8,))).tobytes()


def upcoming(samples, backend):
    """Return the bits of the next random numbers, which are still to be drawn."""
    unigrad.seed(3)
    found = drawn(samples, backend)
    unigrad.seed(3)
    return found


@pytest.mark.parametrize("spoil", [other_shape, other_optimizer, no_random, spoilt_random, other_generators])
def test_a_run_that_does_not_fit_changes_nothing(samples, backend, path, spoil):
    block, optimizer = stepped(samples)
    unigrad.save_training(path, block, optimizer)
    spoil(path)
    step(samples, block, optimizer)
    before = everything(block, optimizer)
    expected = upcoming(samples, backend)
    with pytest.raises(StateMismatchError, match="nothing was changed"):
        unigrad.load_training(path, block, optimizer)
    assert everything(block, optimizer) == before
    assert drawn(samples, backend) == expected


def test_a_run_that_cannot_be_written_changes_nothing(samples, backend, path, monkeypatch):
    block, optimizer = stepped(samples)
    unigrad.save_training(path, block, optimizer)
    step(samples, block, optimizer)
    before = everything(block, optimizer)
    expected = upcoming(samples, backend)
    write, last = backend.arrays.assign, list(block.parameters.values())[-1]

    def refusing(tensor, array):
        if tensor is last:
            raise RuntimeError("this memory can't be written")
        write(tensor, array)

    monkeypatch.setattr(backend.arrays, "assign", refusing)
    with pytest.raises(StateMismatchError, match="nothing was changed"):
        unigrad.load_training(path, block, optimizer)
    monkeypatch.undo()
    assert everything(block, optimizer) == before
    assert drawn(samples, backend) == expected


def test_other_files_are_refused_by_name(samples, path):
    block, optimizer = stepped(samples)
    block.save(path)
    with pytest.raises(StateFileError, match=r"Block\.load"):
        unigrad.load_training(path, block, optimizer)
    unigrad.save_training(path, block, optimizer)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(StateFileError, match="not a whole"):
        unigrad.load_training(path, block, optimizer)
    with pytest.raises(StateFileError, match="no file"):
        unigrad.load_training(path.parent / "missing", block, optimizer)


def test_an_optimizer_of_another_block_is_refused(samples, path):
    block, _ = stepped(samples)
    other, optimizer = stepped(samples)
    with pytest.raises(ArgumentError, match="not the block's"):
        unigrad.save_training(path, block, optimizer)
    with pytest.raises(ArgumentTypeError, match="Optimizer"):
        unigrad.save_training(path, other, optimizer.native)
    assert not path.exists()

"""D1, D3: one seed gives the same bits, here and in a new process; snapshot and restore cover every random source."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError
from unigrad.protocols import Capability
from unigrad.random import snapshot
from unigrad_conformance.suite.problems import array, to_numpy
from unigrad_conformance.suite.random_problems import DRAWS, train

SCRIPT = """
import hashlib, importlib, sys
import unigrad
from unigrad_conformance.suite.random_problems import train
backend = unigrad.get_backend(sys.argv[1])
samples = importlib.import_module(f"{backend.spec.package}.samples")
for name, values in train(samples).items():
    print(name, hashlib.sha256(values).hexdigest(), sep="=")
"""


@pytest.mark.clause("D1")
def test_a_seeded_run_gives_the_same_bits_twice(samples):
    assert train(samples) == train(samples)


@pytest.mark.clause("D1")
def test_a_seeded_run_gives_the_same_bits_in_a_new_process(samples, backend, tmp_path):
    here = {name: hashlib.sha256(values).hexdigest() for name, values in train(samples).items()}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, backend.spec.name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    there = dict(line.split("=") for line in done.stdout.splitlines() if "=" in line)
    assert there == here


def draw(samples, source, generator):
    return to_numpy(DRAWS[source](samples, generator)).tobytes()


@pytest.fixture
def generator(samples, backend):
    return samples.generator(3) if "own_normal" in backend.spec.random_sources else None


@pytest.mark.clause("D3")
def test_every_declared_random_source_is_known_to_the_suite(backend, record):
    sources = backend.spec.random_sources
    assert {"dropout", "normal", "uniform"} <= set(sources)
    assert set(sources) <= set(DRAWS)
    assert ("own_normal" in sources) == (Capability.OWN_GENERATORS in backend.spec.capabilities)


@pytest.mark.clause("D3")
@pytest.mark.parametrize("source", [source for source in DRAWS if source != "own_normal"])
def test_a_restored_snapshot_draws_the_same_again(samples, backend, source):
    state = snapshot(backend)
    first = [draw(samples, source, None) for _ in range(2)]
    assert first[0] != first[1]
    for _ in range(2):  # a snapshot can be restored any number of times
        state.restore()
        assert [draw(samples, source, None) for _ in range(2)] == first


@pytest.mark.clause("D3")
@pytest.mark.needs(Capability.OWN_GENERATORS)
def test_own_generators_are_restored(samples, backend):
    registered, owned = samples.generator(3), samples.generator(4)
    unigrad.register_generator(registered)
    state = snapshot(backend, [owned])
    first = [draw(samples, "own_normal", generator) for generator in (registered, owned)]
    state.restore()
    assert [draw(samples, "own_normal", generator) for generator in (registered, owned)] == first


@pytest.mark.clause("D3")
def test_taking_a_snapshot_draws_nothing(samples, backend):
    sources = ("dropout", "normal", "uniform")
    unigrad.seed(1)
    plain = [draw(samples, source, None) for source in sources]
    unigrad.seed(1)
    watched = []
    for source in sources:
        snapshot(backend)
        watched.append(draw(samples, source, None))
    assert watched == plain


@pytest.mark.clause("D3")
def test_sources_of_python_and_numpy_are_restored(backend):
    own = np.random.default_rng(5)
    unigrad.register_generator(own)
    state = snapshot(backend)

    def draws():
        return (random.random(), np.random.random(), np.random.standard_normal(), own.random())

    first = draws()
    assert draws() != first
    state.restore()
    assert draws() == first


@pytest.mark.clause("D3")
def test_a_snapshot_survives_as_bytes(samples, backend):
    state = backend.rng.snapshot()
    portable = backend.rng.to_portable(state)
    assert isinstance(portable, np.ndarray)
    assert (portable.dtype, portable.ndim) == (np.uint8, 1)
    first = [draw(samples, source, None) for source in ("dropout", "normal", "uniform")]
    backend.rng.restore(backend.rng.from_portable(np.frombuffer(portable.tobytes(), np.uint8)))
    assert [draw(samples, source, None) for source in ("dropout", "normal", "uniform")] == first


@pytest.mark.clause("D3")
def test_a_restored_snapshot_covers_draws_of_many_sizes(samples, backend):
    ops = samples.operations

    def draws():
        return b"".join(to_numpy(ops.normal((size,))).tobytes() for size in (1, 2, 15, 16, 17, 1000, 3))

    draws()
    state = snapshot(backend)
    first = draws()
    state.restore()
    assert draws() == first


@pytest.mark.clause("D1")
def test_a_seed_settles_every_global_source(samples):
    def draws():
        values = [draw(samples, source, None) for source in ("dropout", "normal", "uniform")]
        return [*values, random.random(), np.random.random()]

    unigrad.seed(11)
    first = draws()
    unigrad.seed(12)
    other = draws()
    unigrad.seed(11)
    assert draws() == first
    assert all(a != b for a, b in zip(first, other, strict=True))


@pytest.mark.clause("D1")
@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, np.int64(5)], ids=["zero", "one", "largest", "numpy"])
def test_any_seed_in_range_is_taken(samples, number):
    unigrad.seed(number)
    first = draw(samples, "normal", None)
    unigrad.seed(number)
    assert draw(samples, "normal", None) == first


@pytest.mark.clause("D1")
@pytest.mark.parametrize("number", [-1, 2**32, 10**30], ids=["negative", "too-large", "huge"])
def test_a_seed_out_of_range_is_an_error_and_changes_nothing(samples, number):
    unigrad.seed(3)
    expected = (draw(samples, "normal", None), random.random(), np.random.random())
    unigrad.seed(3)
    with pytest.raises(ArgumentError, match="seed"):
        unigrad.seed(number)
    assert (draw(samples, "normal", None), random.random(), np.random.random()) == expected


@pytest.mark.clause("D1")
@pytest.mark.parametrize("number", [None, "7", 7.0, True, [7]], ids=["none", "text", "float", "bool", "list"])
def test_a_seed_is_an_integer(number):
    with pytest.raises(ArgumentTypeError, match="seed"):
        unigrad.seed(number)


@pytest.mark.clause("D3")
@pytest.mark.parametrize("wrong", [None, 3, "generator"], ids=["none", "number", "text"])
def test_what_is_no_generator_cannot_be_registered(samples, wrong):
    with pytest.raises(ArgumentTypeError):
        unigrad.register_generator(wrong)
    with pytest.raises(ArgumentTypeError):
        unigrad.register_generator(samples.tensor(array(2)))


@pytest.mark.clause("D3")
def test_a_generator_registered_twice_is_kept_once(backend):
    own = np.random.default_rng(5)
    unigrad.register_generator(own)
    unigrad.register_generator(own)
    assert sum(item is own for item, _ in snapshot(backend, [own]).generators) == 1

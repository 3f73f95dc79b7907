"""B5: files: safetensors that say what they hold, written whole or not at all, never a pickle."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import unigrad
from unigrad.errors import StateFileError, StateMismatchError
from unigrad_conformance.suite.block_problems import KINDS, branches, fill, layer_of, norm_model, state_bits
from unigrad_conformance.suite.problems import array, dense, mlp, same_bits, to_numpy

pytestmark = pytest.mark.clause("B5")


def header_of(path):
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def rewrite(path, **changes):
    """Write the file again with changes in its description."""
    description = json.loads(header_of(path)["__metadata__"]["unigrad"])
    arrays = safetensors.numpy.load_file(path)
    description = {key: value for key, value in {**description, **changes}.items() if value is not None}
    safetensors.numpy.save_file(arrays, path, {"unigrad": json.dumps(description)})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_brings_back_every_bit(samples, backend, path, kind):
    source, target = unigrad.wrap(layer_of(samples, kind)), unigrad.wrap(layer_of(samples, kind))
    fill(backend, source)
    source.save(path)
    target.load(path)
    assert state_bits(target) == state_bits(source)


def test_statistics_and_counters_are_in_the_file(samples, path):
    source, target = (unigrad.wrap(norm_model(samples)).train() for _ in range(2))
    for _ in range(3):
        source(samples.tensor(array(4, 1)))
    source.save(path)
    target.load(path)
    assert state_bits(target) == state_bits(source)
    x = samples.tensor(array(4, 1, seed=1))
    assert to_numpy(target(x)).tobytes() == to_numpy(source(x)).tobytes()
    assert state_bits(target) == state_bits(source)


def test_each_dtype_is_saved_as_it_is(samples, path, dtype):
    source = unigrad.wrap({"w": samples.leaf(np.array([0.5, -2.0, 3.0]), dtype)})
    target = unigrad.wrap({"w": samples.leaf(np.zeros(3), dtype)})
    source.save(path)
    target.load(path)
    same_bits(target.state(), source.state())


def test_the_file_is_plain_safetensors(samples, path):
    block = unigrad.wrap(branches(samples))
    block.save(path)
    same_bits(safetensors.numpy.load_file(path), block.state())


def test_the_file_says_framework_roles_and_ties(samples, backend, path):
    layer = dense(samples, 2, 2)
    unigrad.wrap(samples.layer("sequential", layers=[layer, layer])).save(path)
    described = json.loads(header_of(path)["__metadata__"]["unigrad"])
    assert described["framework"] == backend.spec.name
    assert described["roles"] == {"0.weight": "dense", "0.bias": "dense"}
    assert described["ties"] == {"1.weight": "0.weight", "1.bias": "0.bias"}


def test_the_path_may_be_a_string(samples, path):
    block = unigrad.wrap(dense(samples, 2, 2))
    block.save(str(path))
    block.load(str(path))


def test_loading_twice_gives_the_same(samples, path):
    block = unigrad.wrap(mlp(samples, 3, 4, 2))
    block.save(path)
    before = state_bits(block)
    block.load(path)
    block.load(path)
    assert state_bits(block) == before


def test_a_file_of_another_framework_is_refused(samples, backend, path):
    block = unigrad.wrap(dense(samples, 2, 2))
    block.save(path)
    rewrite(path, framework="elsewhere")
    before = state_bits(block)
    with pytest.raises(StateMismatchError, match=rf"elsewhere.*{backend.spec.name}"):
        block.load(path)
    assert state_bits(block) == before


def test_a_square_embedding_is_not_loaded_into_a_dense_layer(samples, path):
    table = samples.layer("embedding", weight=array(2, 2), padding_index=None)
    unigrad.wrap(table).save(path)
    block = unigrad.wrap(dense(samples, 2, 2, bias=False))
    before = state_bits(block)
    with pytest.raises(StateMismatchError, match=r"weight: role 'embedding' in the file, 'dense' in the block"):
        block.load(path)
    assert state_bits(block) == before


def test_every_differing_role_is_listed(samples, path):
    block = unigrad.wrap(mlp(samples, 2, 2, 2))
    block.save(path)
    rewrite(path, roles={"0.weight": "conv", "0.bias": "dense", "2.weight": "embedding", "2.bias": "dense"})
    with pytest.raises(StateMismatchError) as caught:
        block.load(path, strict=False)
    assert caught.match(r"0\.weight: role 'conv'")
    assert caught.match(r"2\.weight: role 'embedding'")
    assert "bias" not in str(caught.value)


def test_names_of_a_file_are_checked_as_those_of_a_state(samples, path):
    unigrad.wrap(mlp(samples, 3, 4, 2)).save(path)
    block = unigrad.wrap(samples.layer("sequential", layers=[dense(samples, 3, 4, seed=5)]))
    before = block.state()
    with pytest.raises(StateMismatchError, match=r"2\.weight: the block has no such name"):
        block.load(path)
    same_bits(block.state(), before)
    report = block.load(path, strict=False)
    assert set(report.unexpected) == {"2.weight", "2.bias"}
    assert state_bits(block) != {name: values.tobytes() for name, values in before.items()}


def test_a_safetensors_file_of_someone_else_says_how_to_load_it(samples, path):
    block = unigrad.wrap(dense(samples, 2, 2))
    safetensors.numpy.save_file(block.state(), path)
    with pytest.raises(StateFileError, match="load_state"):
        block.load(path)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]], ids=["older", "newer", "text", "absent", "list"])
def test_a_file_of_another_format_is_refused(samples, path, version):
    block = unigrad.wrap(dense(samples, 2, 2))
    block.save(path)
    rewrite(path, format=version)
    with pytest.raises(StateFileError):
        block.load(path)


def test_a_failed_save_leaves_the_old_file_and_no_rest(samples, path, monkeypatch):
    block = unigrad.wrap(dense(samples, 2, 2))
    block.save(path)
    old = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space left"):
                block.save(path)
        assert path.read_bytes() == old
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_file_saved_through_a_link_is_the_one_behind_it(samples, backend, path, tmp_path):
    block = unigrad.wrap(dense(samples, 2, 2))
    (tmp_path / "runs").mkdir()
    behind = tmp_path / "runs" / "step-1.safetensors"
    path.symlink_to(behind)
    for _ in range(2):  # the first save makes the file, the second replaces it
        fill(backend, block)
        before = state_bits(block)
        block.save(path)
        assert path.is_symlink()
        block.load(behind)
        assert state_bits(block) == before
    assert [entry.name for entry in behind.parent.iterdir()] == [behind.name]


def test_links_in_a_circle_are_an_error_and_stay(samples, path):
    path.symlink_to(path.name)
    with pytest.raises(OSError, match=path.name):
        unigrad.wrap(dense(samples, 2, 2)).save(path)
    assert path.is_symlink()


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_replaced_file_keeps_its_mode(samples, path, mode):
    block = unigrad.wrap(dense(samples, 2, 2))
    block.save(path)
    path.chmod(mode)
    block.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_mode_of_an_ordinary_one(samples, path):
    ordinary = path.with_name("ordinary")
    ordinary.touch()
    unigrad.wrap(dense(samples, 2, 2)).save(path)
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_a_name_as_long_as_the_system_allows_is_saved_to(samples, tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    block = unigrad.wrap(dense(samples, 2, 2))
    before = state_bits(block)
    block.save(tmp_path / ("a" * longest))
    block.load(tmp_path / ("a" * longest))
    assert state_bits(block) == before
    with pytest.raises(OSError, match="too long"):
        block.save(tmp_path / ("a" * (longest + 1)))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_no_file(samples, path):
    """Opened, it would wait for somebody at its other end; replaced, somebody who waits there would wait for ever."""
    os.mkfifo(path)
    block = unigrad.wrap(dense(samples, 2, 2))
    for action in (block.save, block.load):
        with pytest.raises(StateFileError, match="not a file") as error:
            action(path)
        assert path.name in str(error.value)
    assert path.is_fifo()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_saving_into_a_missing_folder_fails_and_makes_nothing(samples, tmp_path):
    with pytest.raises(OSError, match="missing"):
        unigrad.wrap(dense(samples, 2, 2)).save(tmp_path / "missing" / "state.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_saved_file_does_not_follow_the_block(samples, backend, path):
    block = unigrad.wrap(dense(samples, 2, 2))
    before = state_bits(block)
    block.save(path)
    fill(backend, block)
    block.load(path)
    assert state_bits(block) == before


def test_a_file_loaded_and_overwritten_does_not_reach_the_block(samples, path):
    block = unigrad.wrap(dense(samples, 2, 2))
    block.save(path)
    block.load(path)
    before = state_bits(block)
    Path(path).write_bytes(b"\xff" * path.stat().st_size)
    assert state_bits(block) == before

"""B5: a truncated, spoilt or hostile file is a clear error, and nothing is half loaded."""

from __future__ import annotations

import json
import pickle
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad.errors import ArgumentTypeError, StateFileError, StateMismatchError
from unigrad_conformance.suite.block_problems import state_bits
from unigrad_conformance.suite.problems import dense, mlp

pytestmark = pytest.mark.clause("B5")


@pytest.fixture
def block(samples):
    return unigrad.wrap(mlp(samples, 3, 4, 2))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


def refused(block, path, error=StateFileError):
    before = state_bits(block)
    with pytest.raises(error) as caught:
        block.load(path)
    assert state_bits(block) == before
    return str(caught.value)


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "empty": b"",
    "three bytes": b"abc",
    "text": b"weights of my model\n" * 20,
    "zeros": bytes(64),
    "header longer than the file": struct.pack("<Q", 10_000) + b"{}",
    "header of 2**63 bytes": struct.pack("<Q", 2**63) + b"{}",
    "header is no JSON": with_header(b"{'weight': 1}"),
    "header is a list": with_header([1, 2, 3]),
    "header is not UTF-8": with_header(b'{"\xff\xfe": 1}'),
    "deeply nested header": with_header(b"[" * 100_000),
    "unknown dtype": with_header({"w": entry(dtype="F7")}, bytes(16)),
    "offsets past the end": with_header({"w": entry(offsets=(0, 1 << 40), shape=(1 << 38,))}, bytes(16)),
    "offsets backwards": with_header({"w": entry(offsets=(16, 0))}, bytes(16)),
    "negative offsets": with_header({"w": entry(offsets=(-16, 0))}, bytes(16)),
    "negative shape": with_header({"w": entry(shape=(-2, -2))}, bytes(16)),
    "shape that overflows": with_header({"w": entry(shape=(2**62, 2**62))}, bytes(16)),
    "overlapping tensors": with_header({"a": entry(), "b": entry(offsets=(8, 24))}, bytes(24)),
    "shape and offsets disagree": with_header({"w": entry(shape=(3, 3))}, bytes(16)),
    "data longer than told": with_header({"w": entry()}, bytes(64)),
    "pickle": pickle.dumps({"weight": [1.0, 2.0]}),
    "zip of NumPy": b"PK\x03\x04" + bytes(200),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_state_file_is_refused(block, path, kind):
    path.write_bytes(HOSTILE[kind])
    assert str(path) in refused(block, path)


def test_a_missing_file_is_named(block, path):
    assert "there is no file" in refused(block, path)


def test_a_folder_is_no_file(block, tmp_path):
    assert str(tmp_path) in refused(block, tmp_path)


def test_a_file_that_may_not_be_read_is_no_missing_one(block, path, monkeypatch):
    """Whoever runs as root may read all, so the system's answer is made up."""
    block.save(path)

    def denied(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", denied)
    text = refused(block, path)
    assert str(path) in text
    assert "can't be read: Permission denied" in text


def test_a_pickle_in_the_file_is_never_run(block, path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was run",))

    path.write_bytes(pickle.dumps(Trap()))
    refused(block, path)
    np.save(path.with_suffix(".npy"), np.array([Trap()], object))
    refused(block, path.with_suffix(".npy"))


@pytest.mark.parametrize("missing", [1, 4, 17, 100, "half", "header", "all but 8"])
def test_a_truncated_file_is_refused(block, path, missing):
    block.save(path)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    keep = {"half": len(data) // 2, "header": header, "all but 8": 8}.get(
        missing, len(data) - missing if isinstance(missing, int) else 0
    )
    path.write_bytes(data[:keep])
    assert "not a whole safetensors file" in refused(block, path)


@settings(max_examples=60)
@given(position=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255), where=st.sampled_from(["header", "file"]))
def test_a_spoilt_byte_never_loads_half(samples, tmp_path_factory, position, value, where):
    path = tmp_path_factory.mktemp("spoilt") / "state.safetensors"
    source, target = unigrad.wrap(mlp(samples, 3, 4, 2)), unigrad.wrap(mlp(samples, 3, 4, 2, seed=50))
    source.save(path)
    data = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    data[int(position * (header if where == "header" else len(data)))] = value
    path.write_bytes(bytes(data))
    before = state_bits(target)
    try:
        target.load(path)
    except (StateFileError, StateMismatchError):
        assert state_bits(target) == before
    else:
        assert set(state_bits(target)) == set(before)
        assert all(after != before[name] for name, after in state_bits(target).items())


DESCRIPTIONS = {
    "text": "unigrad",
    "list": [1, 2],
    "number": 1,
    "null": None,
    "empty": {},
    "no framework": {"format": 1, "roles": {}, "ties": {}},
    "framework a list": {"format": 1, "framework": ["x"], "roles": {}, "ties": {}},
    "no roles": {"format": 1, "framework": "HERE", "ties": {}},
    "roles a list": {"format": 1, "framework": "HERE", "roles": ["dense"], "ties": {}},
    "roles nested": {"format": 1, "framework": "HERE", "roles": {"0.weight": {"a": 1}}, "ties": {}},
    "ties text": {"format": 1, "framework": "HERE", "roles": {}, "ties": "0.weight"},
    "ties nested": {"format": 1, "framework": "HERE", "roles": {}, "ties": {"0.weight": ["0.bias"]}},
    "tie to nothing": {"format": 1, "framework": "HERE", "roles": {}, "ties": {"other": "absent"}},
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_a_spoilt_description_is_an_error_of_our_own(backend, block, path, kind):
    text = json.dumps(DESCRIPTIONS[kind]).replace("HERE", backend.spec.name)
    arrays = {name: values + 1 for name, values in block.state().items()}
    safetensors.numpy.save_file(arrays, path, {"unigrad": text})
    refused(block, path, (StateFileError, StateMismatchError))


@pytest.mark.parametrize("text", ["{format: 1", "[" * 100_000], ids=["spoilt", "deep"])
def test_a_description_that_is_no_json_is_refused(block, path, text):
    safetensors.numpy.save_file(block.state(), path, {"unigrad": text})
    refused(block, path)


@pytest.mark.parametrize("wrong", [None, 3, b"state", ["state"]], ids=["none", "number", "bytes", "list"])
def test_what_is_no_path_is_a_type_error(block, wrong):
    for use in (block.save, block.load):
        with pytest.raises(ArgumentTypeError, match="path"):
            use(wrong)


def test_wrong_shapes_and_dtypes_of_a_file_are_listed(samples, block, path):
    other = samples.layer(
        "sequential",
        layers=[dense(samples, 3, 5), samples.layer("tanh"), dense(samples, 5, 2)],
    )
    unigrad.wrap(other).save(path)
    text = refused(block, path, StateMismatchError)
    for name in ("0.weight", "0.bias", "2.weight"):
        assert f"{name}: shape" in text
    assert "2.bias" not in text


def test_another_dtype_in_a_file_is_refused(samples, path):
    unigrad.wrap({"w": samples.leaf(np.zeros(2), "float32")}).save(path)
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header["w"].update(dtype="I32")
    path.write_bytes(with_header(header, data[start:]))
    block = unigrad.wrap({"w": samples.leaf(np.ones(2), "float32")})
    assert "w: dtype int32" in refused(block, path, StateMismatchError)

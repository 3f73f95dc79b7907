"""B7: a mapping of names to trainable tensors is a block; A4, B7: what cannot be wrapped says why."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from unigrad_conformance.suite.block_problems import branches, collect, state_bits
from unigrad_conformance.suite.problems import array, dense, same_bits, to_numpy

pytestmark = pytest.mark.clause("B7")


def test_a_mapping_of_tensors_is_a_block(samples):
    w, b = samples.leaf(array(3)), samples.leaf(array(3, seed=1))
    block = unigrad.wrap({"layer.w": w, "b": b})
    assert list(block.parameters) == ["layer.w", "b"]
    assert block.parameters["layer.w"] is w
    assert not block.buffers
    assert block.pending == ()
    assert set(block.roles.values()) == {"other"}
    assert block.native is None
    assert block.native_name("layer.w") == "layer.w"


def test_a_mapping_collects(samples):
    w, b = samples.leaf(np.array([1.0, 2.0])), samples.leaf(np.array([3.0, 4.0]))
    ops = samples.operations
    collector = collect({"w": w, "b": b}, lambda: ops.sum(w * w * b))
    assert to_numpy(collector.gradients["w"]).tolist() == [6, 16]
    assert to_numpy(collector.gradients["b"]).tolist() == [1, 4]


def test_one_mapping_has_one_block(samples):
    w, b = samples.leaf(array(3)), samples.leaf(array(3))
    block = unigrad.wrap({"w": w, "b": b})
    assert unigrad.wrap({"w": w, "b": b}) is block
    assert unigrad.wrap({"w": w}) is not block
    assert unigrad.wrap({"x": w, "b": b}) is not block


def test_a_mapping_has_no_call(samples):
    with pytest.raises(UnsupportedError, match="no call"):
        unigrad.wrap({"w": samples.leaf(array(3))})(samples.tensor(array(3)))


def test_a_later_change_of_the_mapping_does_not_change_the_block(samples):
    given = {"w": samples.leaf(array(3))}
    block = unigrad.wrap(given)
    given["b"] = samples.leaf(array(3))
    assert list(block.parameters) == ["w"]


def test_one_tensor_under_two_names_is_tied(samples):
    w = samples.leaf(array(3))
    block = unigrad.wrap({"a": w, "b": w})
    assert list(block.parameters) == ["a"]
    assert dict(block.aliases) == {"b": "a"}


def test_a_mapping_freezes_and_moves_state(samples, tmp_path):
    block = unigrad.wrap({"w": samples.leaf(array(3)), "b": samples.leaf(array(3))})
    block.freeze("w")
    ops = samples.operations
    collector = collect(block, lambda: ops.sum(block.parameters["w"] * block.parameters["b"]))
    assert list(collector.gradients) == ["b"]
    state = {name: values + 1 for name, values in block.state().items()}
    block.load_state(state)
    block.save(tmp_path / "mapping.safetensors")
    twin = unigrad.wrap({"w": samples.leaf(array(3)), "b": samples.leaf(array(3))})
    twin.load(tmp_path / "mapping.safetensors")
    same_bits(twin.state(), state)


def test_a_mapping_has_a_mode_that_does_nothing(samples):
    block = unigrad.wrap({"w": samples.leaf(array(3))})
    assert block.train().training is True
    assert block.eval().training is False


def test_an_empty_mapping_is_an_error():
    with pytest.raises(ArgumentError, match="empty"):
        unigrad.wrap({})


@pytest.mark.parametrize("name", [3, None, "", ("w",)], ids=["number", "none", "empty", "tuple"])
def test_names_of_a_mapping_are_strings(samples, name):
    with pytest.raises(ArgumentTypeError, match="name"):
        unigrad.wrap({"first": samples.leaf(array(2)), name: samples.leaf(array(2))})


def test_numpy_arrays_are_no_tensors(samples):
    with pytest.raises(ArgumentTypeError, match=r"'w'.*ndarray"):
        unigrad.wrap({"w": np.zeros(3, "float32")})
    with pytest.raises(ArgumentTypeError, match=r"'b'.*ndarray"):
        unigrad.wrap({"w": samples.leaf(array(3)), "b": np.zeros(3, "float32")})


@pytest.mark.parametrize("value", [1.0, "w", None, [1.0]], ids=["number", "text", "none", "list"])
def test_other_values_are_no_tensors(samples, value):
    with pytest.raises(ArgumentTypeError):
        unigrad.wrap({"first": samples.leaf(array(2)), "second": value})


def test_a_tensor_without_gradient_is_refused_by_name(samples):
    with pytest.raises(ArgumentError, match="'constant'"):
        unigrad.wrap({"w": samples.leaf(array(2)), "constant": samples.tensor(array(2))})


def test_a_computed_tensor_is_refused_by_name(samples):
    w = samples.leaf(array(2))
    with unigrad.GradientCollector({"w": w}, on_unused="ignore"), pytest.raises(ArgumentError, match="'computed'"):
        unigrad.wrap({"w": w, "computed": w * 2})


WRONG = {
    "none": lambda samples: None,
    "number": lambda samples: 3,
    "text": lambda samples: "model",
    "bytes": lambda samples: b"model",
    "list of models": lambda samples: [dense(samples, 2, 2)],
    "array": lambda samples: np.zeros(3),
    "tensor": lambda samples: samples.tensor(array(3)),
    "leaf": lambda samples: samples.leaf(array(3)),
    "class of a model": lambda samples: type(dense(samples, 2, 2)),
    "function": lambda samples: lambda x: x,
    "optimizer factory": lambda samples: samples.sgd(0.1),
    "object": lambda samples: object(),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_model_is_a_type_error(samples, kind):
    with pytest.raises(ArgumentTypeError):
        unigrad.wrap(WRONG[kind](samples))
    with pytest.raises(ArgumentTypeError):
        unigrad.GradientCollector(WRONG[kind](samples))


def test_a_tensor_is_told_to_be_wrapped_by_name(samples):
    with pytest.raises(ArgumentTypeError, match="mapping of names"):
        unigrad.wrap(samples.leaf(array(3)))


def test_wrapping_changes_nothing(samples):
    model = branches(samples)
    x = samples.tensor(array(5, 3))
    before = to_numpy(model(x)[0])
    block = unigrad.wrap(model)
    held = state_bits(block)
    assert to_numpy(model(x)[0]).tobytes() == before.tobytes()
    assert to_numpy(block(x)[0]).tobytes() == before.tobytes()
    assert state_bits(block) == held

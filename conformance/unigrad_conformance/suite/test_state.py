"""B5: state as NumPy arrays: copies out, all or nothing in."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unigrad
from unigrad.errors import ArgumentTypeError, StateMismatchError
from unigrad_conformance.suite.block_problems import KINDS, branches, fill, layer_of, norm_model, state_bits
from unigrad_conformance.suite.problems import array, dense, mlp, same_bits, to_numpy

pytestmark = pytest.mark.clause("B5")


@pytest.mark.parametrize("kind", KINDS)
def test_state_of_every_kind_of_layer_moves_to_another(samples, backend, kind):
    source, target = unigrad.wrap(layer_of(samples, kind)), unigrad.wrap(layer_of(samples, kind))
    fill(backend, source)
    assert state_bits(target) != state_bits(source)
    report = target.load_state(source.state())
    assert (report.missing, report.unexpected) == ((), ())
    assert state_bits(target) == state_bits(source)


def test_state_holds_parameters_and_buffers_in_order(samples):
    block = unigrad.wrap(norm_model(samples))
    state = block.state()
    assert list(state) == [*block.parameters, *block.buffers]
    assert all(isinstance(values, np.ndarray) and values.flags.c_contiguous for values in state.values())


def test_state_is_a_copy(samples):
    block = unigrad.wrap(mlp(samples, 3, 2))
    before = state_bits(block)
    for values in block.state().values():
        values[...] = 7
    assert state_bits(block) == before


def test_what_was_loaded_is_a_copy(samples):
    block = unigrad.wrap(dense(samples, 3, 2))
    given_arrays = {name: values + 1 for name, values in block.state().items()}
    block.load_state(given_arrays)
    loaded = state_bits(block)
    for values in given_arrays.values():
        values[...] = 7
    assert state_bits(block) == loaded


def test_a_later_step_does_not_change_a_state(samples, backend):
    block = unigrad.wrap(norm_model(samples)).train()
    state = block.state()
    kept = {name: values.copy() for name, values in state.items()}
    fill(backend, block)
    block(samples.tensor(array(4, 1)))
    same_bits(state, kept)


def test_loading_keeps_the_native_parameters(samples):
    block = unigrad.wrap(norm_model(samples))
    before = {**block.parameters, **block.buffers}
    block.load_state({name: values + 1 for name, values in block.state().items()})
    after = {**block.parameters, **block.buffers}
    assert all(after[name] is before[name] for name in before)


def test_loaded_values_are_used_by_the_next_forward(samples):
    source, target = unigrad.wrap(mlp(samples, 3, 4, 2, seed=1)), unigrad.wrap(mlp(samples, 3, 4, 2, seed=9))
    target.load_state(source.state())
    x = samples.tensor(array(5, 3))
    assert to_numpy(target(x)).tobytes() == to_numpy(source(x)).tobytes()


@pytest.mark.parametrize("kind", [dict, OrderedDict], ids=["dict", "ordered"])
def test_any_mapping_in_any_order_can_be_loaded(samples, kind):
    block = unigrad.wrap(mlp(samples, 3, 4, 2))
    items = [(name, values + 1) for name, values in block.state().items()]
    block.load_state(kind(reversed(items)))
    same_bits(block.state(), dict(items))


def test_state_of_each_dtype_moves(samples, dtype):
    source = unigrad.wrap({"w": samples.leaf(np.array([0.5, -2.0, 3.0]), dtype)})
    target = unigrad.wrap({"w": samples.leaf(np.zeros(3), dtype)})
    state = source.state()
    assert state["w"].dtype.name == dtype
    target.load_state(state)
    same_bits(target.state(), state)


def test_a_state_under_all_names_of_a_tied_parameter_is_one_value(samples):
    layer = dense(samples, 2, 2)
    block = unigrad.wrap(samples.layer("sequential", layers=[layer, layer]))
    assert list(block.state()) == ["0.weight", "0.bias"]
    new = {name: values + 1 for name, values in block.state().items()}
    block.load_state({**new, "1.weight": new["0.weight"].copy()})
    same_bits(block.state(), new)
    block.load_state({"1.weight": new["0.weight"] + 1, "1.bias": new["0.bias"]})
    same_bits(block.state(), {**new, "0.weight": new["0.weight"] + 1})


def test_a_tied_parameter_given_two_values_is_an_error(samples):
    layer = dense(samples, 2, 2, bias=False)
    block = unigrad.wrap(samples.layer("sequential", layers=[layer, layer]))
    before = state_bits(block)
    weight = block.state()["0.weight"]
    with pytest.raises(StateMismatchError, match=r"1\.weight.*tied to 0\.weight"):
        block.load_state({"0.weight": weight, "1.weight": weight + 1})
    assert state_bits(block) == before


@pytest.mark.parametrize("strict", [True, False])
def test_a_fault_under_a_further_name_is_told_once(samples, strict):
    layer = dense(samples, 2, 2, bias=False)
    block = unigrad.wrap(samples.layer("sequential", layers=[layer, layer]))
    before = state_bits(block)
    with pytest.raises(StateMismatchError, match=r"\(1 mismatches\):\n  1\.weight: shape"):
        block.load_state({"1.weight": np.zeros((3, 2), "float32")}, strict=strict)
    assert state_bits(block) == before


FAULTS = {
    "missing": (lambda state: state.pop("left.weight"), r"left\.weight: missing"),
    "unexpected": (lambda state: state.update(extra=np.zeros(2, "float32")), r"extra: the block has no such name"),
    "shape": (lambda state: state.update({"left.bias": np.zeros(3, "float32")}), r"left\.bias: shape \(3,\).*\(2,\)"),
    "transposed": (lambda state: state.update({"left.weight": state["left.weight"].T}), r"left\.weight: shape"),
    "extra-axis": (lambda state: state.update({"left.bias": state["left.bias"][None]}), r"left\.bias: shape \(1, 2\)"),
    "dtype": (
        lambda state: state.update({"left.bias": state["left.bias"].astype("float64")}),
        r"left\.bias: dtype float64.*float32",
    ),
    "integers": (lambda state: state.update({"left.bias": np.array([1, 2], "int32")}), r"left\.bias: dtype int32"),
    "complex": (
        lambda state: state.update({"left.bias": np.array([1, 2], "complex64")}),
        r"left\.bias: dtype complex64",
    ),
    "objects": (lambda state: state.update({"left.bias": np.array([1, 2], object)}), r"left\.bias: dtype object"),
    "list": (lambda state: state.update({"left.bias": [1.0, 2.0]}), r"left\.bias: a list"),
    "none": (lambda state: state.update({"left.bias": None}), r"left\.bias: a NoneType"),
    "masked": (
        lambda state: state.update({"left.bias": np.ma.masked_array(np.array([1, 2], "float32"), mask=[False, True])}),
        r"left\.bias: a masked array",
    ),
    "name-no-string": (lambda state: state.update({3: np.zeros(2, "float32")}), r"3: the block has no such name"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_named_and_nothing_is_loaded(samples, fault):
    spoil, message = FAULTS[fault]
    block = unigrad.wrap(branches(samples))
    before = state_bits(block)
    state = {name: values + 1 for name, values in block.state().items()}
    spoil(state)
    with pytest.raises(StateMismatchError, match=message):
        block.load_state(state)
    assert state_bits(block) == before


def test_every_fault_is_listed_in_one_error(samples):
    block = unigrad.wrap(branches(samples))
    before = state_bits(block)
    state = {name: values + 1 for name, values in block.state().items()}
    for fault in ("missing", "unexpected", "dtype", "name-no-string"):
        FAULTS[fault][0](state)
    with pytest.raises(StateMismatchError) as caught:
        block.load_state(state)
    for fault in ("missing", "unexpected", "dtype", "name-no-string"):
        assert caught.match(FAULTS[fault][1])
    assert "right" not in str(caught.value)
    assert state_bits(block) == before


@pytest.mark.parametrize("fault", ["shape", "dtype", "objects", "list", "masked"])
def test_a_loose_load_still_refuses_what_does_not_fit(samples, fault):
    block = unigrad.wrap(branches(samples))
    before = state_bits(block)
    state = {name: values + 1 for name, values in block.state().items()}
    FAULTS[fault][0](state)
    with pytest.raises(StateMismatchError, match=FAULTS[fault][1]):
        block.load_state(state, strict=False)
    assert state_bits(block) == before


@pytest.mark.parametrize(
    "error", [RuntimeError("this memory can't be written"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_a_write_that_fails_half_way_changes_nothing(samples, backend, monkeypatch, error):
    block = unigrad.wrap(branches(samples))
    before = state_bits(block)
    state = {name: values + 1 for name, values in block.state().items()}
    write, failing = backend.arrays.assign, block.parameters["left.weight"]
    raised: list[BaseException] = []

    def refusing(tensor, array):
        if tensor is failing and not raised:
            raised.append(error)
            write(tensor, array)
            raise error
        write(tensor, array)

    monkeypatch.setattr(backend.arrays, "assign", refusing)
    expected = StateMismatchError if isinstance(error, Exception) else type(error)
    with pytest.raises(expected, match=r"left\.weight.*nothing was changed" if isinstance(error, Exception) else None):
        block.load_state(state)
    monkeypatch.undo()
    assert state_bits(block) == before


def test_strict_is_true_or_false(samples):
    block = unigrad.wrap(branches(samples))
    wrong: Any = "no"
    with pytest.raises(ArgumentTypeError, match="strict is True or False, not 'no'"):
        block.load_state(block.state(), strict=wrong)


def test_a_loose_load_reports_what_was_missing_and_unexpected(samples):
    block = unigrad.wrap(branches(samples))
    before = block.state()
    report = block.load_state({"left.bias": before["left.bias"] + 1, "extra": np.zeros(1)}, strict=False)
    assert report.unexpected == ("extra",)
    assert report.missing == ("encoder.weight", "encoder.bias", "left.weight", "right.weight", "right.bias")
    same_bits(block.state(), {**before, "left.bias": before["left.bias"] + 1})


@pytest.mark.parametrize(
    "wrong", [None, [1, 2], "file.safetensors", 3, np.zeros(3)], ids=["none", "list", "path", "number", "array"]
)
def test_what_is_no_mapping_is_a_type_error(samples, wrong):
    with pytest.raises(ArgumentTypeError, match="mapping"):
        unigrad.wrap(branches(samples)).load_state(wrong)


def test_native_tensors_are_not_arrays(samples):
    block = unigrad.wrap(branches(samples))
    before = state_bits(block)
    with pytest.raises(StateMismatchError, match=r"encoder\.weight: a .*, not a NumPy array"):
        block.load_state(dict(block.parameters))
    assert state_bits(block) == before


def layouts(values):
    """Return the values in every memory layout that NumPy has."""
    wide = np.zeros((2 * values.shape[0], 3 * values.shape[1]), values.dtype)
    wide[::2, ::3] = values
    backwards = values[::-1, ::-1].copy()[::-1, ::-1]
    locked = values.copy()
    locked.flags.writeable = False
    return {
        "fortran": np.asfortranarray(values),
        "strided": wide[::2, ::3],
        "backwards": backwards,
        "transposed": values.T.copy().T,
        "read-only": locked,
        "swapped bytes": values.astype(values.dtype.newbyteorder()),
        "unaligned": np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(values.dtype).reshape(values.shape),
    }


@given(
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    layout=st.sampled_from(sorted(layouts(np.zeros((1, 1), "float32")))),
    seed=st.integers(0, 99),
)
def test_the_memory_layout_of_an_array_does_not_matter(samples, rows, columns, layout, seed):
    values = array(rows, columns, seed=seed)
    block = unigrad.wrap({"w": samples.leaf(np.zeros((rows, columns), "float32"))})
    block.load_state({"w": layouts(values)[layout]})
    assert block.state()["w"].tobytes() == values.tobytes()


def test_a_broadcast_array_is_loaded_by_its_values(samples):
    block = unigrad.wrap({"w": samples.leaf(np.zeros((3, 2), "float32"))})
    block.load_state({"w": np.broadcast_to(np.array([1, 2], "float32"), (3, 2))})
    assert block.state()["w"].tolist() == [[1, 2]] * 3


def test_nan_and_infinity_are_values_like_others(samples):
    values = np.array([np.nan, np.inf, -np.inf, -0.0], "float32")
    block = unigrad.wrap({"w": samples.leaf(np.zeros(4, "float32"))})
    block.load_state({"w": values})
    assert block.state()["w"].tobytes() == values.tobytes()


def test_a_frozen_parameter_is_loaded_and_stays_frozen(samples, backend):
    block = unigrad.wrap(dense(samples, 2, 2)).freeze()
    new = {name: values + 1 for name, values in block.state().items()}
    block.load_state(new)
    same_bits(block.state(), new)
    assert not any(backend.block.trainable(tensor) for tensor in block.parameters.values())

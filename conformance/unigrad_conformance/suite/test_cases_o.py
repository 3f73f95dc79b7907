"""Cases of kind O: what is saved in any memory layout, tied or not, comes back by value."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad.errors import StateMismatchError
from unigrad.state import read_file, write_file
from unigrad_conformance.suite.block_problems import state_bits
from unigrad_conformance.suite.problems import array, to_numpy

pytestmark = pytest.mark.clause("B5")

WEIGHT = np.arange(6, dtype="float32").reshape(2, 3)

ARRAYS = {
    "transposed": (WEIGHT.T, [[0, 3], [1, 4], [2, 5]]),
    "fortran": (np.asfortranarray(WEIGHT), [[0, 1, 2], [3, 4, 5]]),
    "strided": (np.arange(12, dtype="float32")[::2], [0, 2, 4, 6, 8, 10]),
    "broadcast": (np.broadcast_to(WEIGHT[0], (2, 3)), [[0, 1, 2], [0, 1, 2]]),
    "backwards": (WEIGHT[::-1], [[3, 4, 5], [0, 1, 2]]),
    "channel-last": (
        np.ascontiguousarray(np.arange(8, dtype="float32").reshape(1, 2, 2, 2).transpose(0, 2, 3, 1)).transpose(
            0, 3, 1, 2
        ),
        [[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]],
    ),
    "swapped-bytes": (WEIGHT.astype(">f4"), [[0, 1, 2], [3, 4, 5]]),
    "no-axes": (np.array(3.0, "float32"), 3.0),
}


@pytest.mark.case(115, 117)
@pytest.mark.parametrize("layout", ARRAYS)
def test_115_an_array_of_any_layout_comes_back(tmp_path, layout):
    values, expected = ARRAYS[layout]
    write_file(tmp_path / "arrays.safetensors", {"w": values}, {"format": 1, "framework": "x", "roles": {}, "ties": {}})
    arrays, _ = read_file(tmp_path / "arrays.safetensors")
    assert arrays["w"].tolist() == expected
    assert arrays["w"].dtype == np.float32


def views(samples):
    """Return a native model whose call puts tensors that are views into its buffers."""
    ops = samples.operations

    def forward(self, x):
        samples.set_buffer(self, "transposed", ops.transpose(x, (1, 0)))
        samples.set_buffer(self, "strided", ops.index(x, (slice(None), slice(None, None, 2))))
        return x

    return samples.model(
        forward, buffers={"transposed": np.zeros((3, 2), "float32"), "strided": np.zeros((2, 2), "float32")}
    )


@pytest.mark.case(115, 117)
def test_117_native_views_are_saved_by_value(samples, tmp_path):
    source, target = unigrad.wrap(views(samples)), unigrad.wrap(views(samples))
    source(samples.tensor(WEIGHT))
    assert source.state()["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert source.state()["strided"].tolist() == [[0, 2], [3, 5]]
    source.save(tmp_path / "state.safetensors")
    target.load(tmp_path / "state.safetensors")
    assert state_bits(target) == state_bits(source)


@pytest.mark.case(117)
def test_117_a_convolution_in_channel_last_order_loads_by_value(samples, tmp_path):
    values = array(4, 3, 2, 2)

    def conv(weight):
        return unigrad.wrap(samples.layer("conv2d", weight=weight, bias=None, stride=1, padding=0))

    source, target = conv(np.zeros_like(values)), conv(np.zeros_like(values))
    native = conv(values).state()["weight"]
    last = np.ascontiguousarray(np.moveaxis(native, 1, -1))
    source.load_state({"weight": np.moveaxis(last, -1, 1)})
    source.save(tmp_path / "conv.safetensors")
    target.load(tmp_path / "conv.safetensors")
    assert target.state()["weight"].tobytes() == native.tobytes()


TABLE = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32")


def language_model(samples, *, tied):
    """Return a block of a table 3x2 and an output layer with the same or a separate weight."""
    ops = samples.operations
    table = samples.layer("embedding", weight=TABLE, padding_index=None)
    weight = unigrad.wrap(table).parameters["weight"] if tied else np.zeros((3, 2), "float32")
    head = samples.model(lambda self, x: x @ ops.transpose(self.weight, (1, 0)), parameters={"weight": weight})
    return unigrad.wrap(samples.model(lambda self, ids: self.head(self.emb(ids)), layers={"emb": table, "head": head}))


@pytest.mark.clause("G10", "B1")
@pytest.mark.case(116)
def test_116_a_tied_gradient_is_reported_once(samples, record):
    block = language_model(samples, tied=True)
    ops = samples.operations
    with unigrad.GradientCollector(block) as collector:
        loss = ops.sum(block(samples.tensor(np.array([0, 2, 0], "int64"))))
        collector.backward(loss)
    assert float(to_numpy(loss)) == 183
    assert list(collector.gradients) == ["emb.weight"]
    assert to_numpy(collector.gradients["emb.weight"]).tolist() == [[25, 34], [7, 10], [16, 22]]
    record("gradients", collector.gradients, reason="sums of small whole numbers")


@pytest.mark.case(116)
def test_116_a_tied_file_loads_into_tied_and_untied_models(samples, tmp_path):
    path = tmp_path / "state.safetensors"
    source = language_model(samples, tied=True)
    source.load_state({"emb.weight": TABLE * 2})
    source.save(path)
    tied, untied = language_model(samples, tied=True), language_model(samples, tied=False)
    for block in (tied, untied):
        report = block.load(path)
        assert (report.missing, report.unexpected) == ((), ())
    assert tied.state()["emb.weight"].tolist() == (TABLE * 2).tolist()
    assert dict(tied.aliases) == {"head.weight": "emb.weight"}
    assert {name: values.tolist() for name, values in untied.state().items()} == {
        "emb.weight": (TABLE * 2).tolist(),
        "head.weight": (TABLE * 2).tolist(),
    }
    ids = samples.tensor(np.array([0, 2, 0], "int64"))
    assert to_numpy(tied(ids)).tobytes() == to_numpy(untied(ids)).tobytes()


@pytest.mark.case(116)
def test_116_an_untied_file_loads_into_a_tied_model_only_if_its_values_agree(samples, tmp_path):
    path = tmp_path / "state.safetensors"
    untied, tied = language_model(samples, tied=False), language_model(samples, tied=True)
    untied.save(path)
    before = state_bits(tied)
    with pytest.raises(StateMismatchError, match=r"head\.weight.*tied to emb\.weight"):
        tied.load(path)
    assert state_bits(tied) == before
    untied.load_state({"emb.weight": TABLE * 3, "head.weight": TABLE * 3})
    untied.save(path)
    tied.load(path)
    assert tied.state()["emb.weight"].tolist() == (TABLE * 3).tolist()


@pytest.mark.case(116)
def test_116_a_missing_name_is_never_silent(samples):
    untied = language_model(samples, tied=False)
    with pytest.raises(StateMismatchError, match=r"head\.weight: missing"):
        untied.load_state({"emb.weight": TABLE})

"""A module as a block: what is noticed as a change, paths through wrappers, versions, NumPy (clauses B1 to B6, M5)."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from unigrad_torch import arrays, block, rng

from unigrad.errors import ArgumentTypeError


def model():
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Sequential(nn.Tanh()))


CHANGES = {
    "parameter replaced": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach())),
    "parameter renamed": lambda m: (setattr(m[0], "other", m[0].bias), delattr(m[0], "bias")),
    "parameter removed": lambda m: setattr(m[0], "bias", None),
    "buffer replaced": lambda m: setattr(m[1], "running_mean", torch.zeros(2)),
    "buffer added": lambda m: m[2].register_buffer("count", torch.zeros(1)),
    "layer replaced": lambda m: m.__setitem__(2, nn.Sequential()),
    "layer added deep inside": lambda m: m[2].append(nn.Linear(2, 2)),
    "generator added": lambda m: setattr(m[2], "noise", torch.Generator()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change):
    m = model()
    known = block.structure(m)
    change(m)
    assert block.structure(m, known) is not known


HARMLESS = {
    "nothing": lambda m: None,
    "a call": lambda m: m(torch.ones(3, 2)),
    "a mode": lambda m: m.eval(),
    "values": lambda m: m.load_state_dict(model().state_dict()),
    "an attribute": lambda m: setattr(m, "note", 1),
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_control_what_is_no_change_keeps_the_description(change):
    m = model()
    known = block.structure(m)
    change(m)
    assert block.structure(m, known) is known


def test_a_generator_exchanged_is_noticed():
    m = model()
    m.noise = torch.Generator()
    known = block.structure(m)
    m.noise = torch.Generator()
    assert block.structure(m, known).generators["noise"] is m.noise


def test_a_lazy_layer_is_pending_until_it_is_built():
    m = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    known = block.structure(m)
    assert known.pending == ("0", "1")
    assert [entry.tensor for entry in known.parameters] == [None] * 4
    built = []
    block.on_built(m, lambda: built.append(block.structure(m).pending))
    m(torch.ones(3, 2))
    assert built == [("1",), ()]
    assert block.structure(m, known).pending == ()


def test_a_copy_of_a_lazy_layer_reports_to_nobody():
    m, built = nn.Sequential(nn.LazyLinear(2)), []
    block.on_built(m, lambda: built.append(1))
    block.copy(m)(torch.ones(1, 3))
    assert built == []


def test_a_tie_appears_at_each_place():
    m = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    m[1].weight = m[0].weight
    places = {entry.name: entry.tensor for entry in block.structure(m).parameters}
    assert places["0.weight"] is places["1.weight"]


def test_wrappers_are_looked_through():
    inner = model()
    outer = nn.Sequential(nn.DataParallel(inner))
    assert block.unwrap(nn.DataParallel(inner)) is inner
    entry = block.structure(outer).parameters[0]
    assert (entry.name, entry.native_name) == ("0.0.weight", "0.module.0.weight")
    assert entry.native_name in dict(outer.named_parameters())


def test_a_write_moves_the_version():
    p = nn.Parameter(torch.zeros(2))
    before = arrays.version(p)
    arrays.assign(p, np.ones(2, "float32"))
    assert arrays.version(p) != before
    assert p.tolist() == [1, 1]


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False).eval()])
def test_batch_statistics_couple(layer):
    assert block.couples_samples(nn.Sequential(nn.Tanh(), layer)) == "1"


@pytest.mark.parametrize("layer", [nn.BatchNorm2d(3).eval(), nn.InstanceNorm2d(3), nn.GroupNorm(1, 3)])
def test_other_statistics_do_not_couple(layer):
    assert block.couples_samples(layer) is None


def test_modes_are_as_they_were_after_an_exception():
    m = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval(), nn.Linear(7, 1))
    with pytest.raises(RuntimeError):
        block.call(m, (torch.ones(3, 2),), {}, False, [m[1]])
    assert [layer.training for layer in m.modules()] == [True, True, False, True]


def test_bfloat16_goes_through_numpy_and_back():
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(torch.bfloat16)
    array = arrays.to_numpy(every)
    assert array.dtype == ml_dtypes.bfloat16
    assert torch.equal(arrays.from_numpy(array).view(torch.int16), bits)


def test_odd_tensors_become_plain_arrays():
    sparse = torch.sparse_coo_tensor([[1, 1]], [2.0, 3.0], (3,), check_invariants=True)
    assert arrays.to_numpy(sparse).tolist() == [0, 5, 0]
    assert arrays.to_numpy(torch.ones(2, 2, dtype=torch.complex64).conj()).dtype == np.complex64
    strided = arrays.to_numpy(torch.arange(6.0).reshape(2, 3).t())
    assert strided.flags.c_contiguous
    assert arrays.from_numpy(np.arange(3, dtype=">f4")[::-1]).tolist() == [2, 1, 0]
    with pytest.raises(ArgumentTypeError, match="dtype"):
        arrays.from_numpy(np.array(["text"]))


def test_clones_are_dense_and_apart():
    """Facts A1.7: torch's gradients may be each other, or one number seen several times."""
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    shared = torch.autograd.grad(((a + b) ** 2).sum(), [a, b])
    expanded = torch.autograd.grad((a + b).sum(), [a, b])
    assert shared[0].data_ptr() == shared[1].data_ptr()
    assert 0 in expanded[0].stride()
    clones = [arrays.clone(value) for value in (*shared, *expanded)]
    for value in clones:
        value.mul_(0.5)
    assert [value.tolist() for value in clones] == [[2, 2], [2, 2], [0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [(0.0, -0.0, False), (float("nan"), float("nan"), True), (1.0, 1.0, True), (1.0, 1.0000001, False)],
)
def test_equal_means_bits(left, right, same):
    assert arrays.equal(torch.tensor(left), torch.tensor(right)) is same


def test_clip_factor():
    grads = [torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0], dtype=torch.float64)]
    assert float(arrays.clip_factor(grads, 1.0)) == pytest.approx(0.2, abs=1e-7)  # one float32 rounding
    assert float(arrays.clip_factor(grads, 10.0)) == 1.0
    assert float(arrays.clip_factor([torch.zeros(2)], 1.0)) == 1.0
    assert arrays.clip_factor([], 1.0) == 1.0


def test_random_state_as_bytes():
    rng.seed(3)
    state = rng.snapshot()
    first = torch.rand(3)
    portable = rng.to_portable(state)
    assert (portable.dtype, portable.ndim) == (np.uint8, 1)
    rng.restore(rng.from_portable(portable))
    assert torch.equal(torch.rand(3), first)
    for spoilt in (portable[:-1], portable[9:], np.zeros(3, np.uint8)):
        with pytest.raises(ValueError, match="random state of torch"):
            rng.from_portable(spoilt)

"""Snapshots share memory until one side is written, and never after (clause G7)."""

import numpy as np
import pytest
import torch
from unigrad_torch import arrays, sharing

WRITES = {
    "in place": lambda t: t.mul_(3),
    "one element": lambda t: t.__setitem__(0, 7.0),
    "through NumPy": lambda t: t.numpy().__imul__(3),
    "through DLPack": lambda t: torch.from_dlpack(t).mul_(3),
    "through a view": lambda t: t.view(2, 2)[1].zero_(),
    "by out=": lambda t: torch.mul(t, 3, out=t),
    "by a foreach operation": lambda t: torch._foreach_mul_([t], 3),
    "through .data": lambda t: t.data.zero_(),
}


@pytest.mark.parametrize("private", [True, False], ids=["copy-on-write", "plain copies"])
@pytest.mark.parametrize("side", ["source", "first", "second"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_stays_on_its_side(write, side, private, monkeypatch):
    assert sharing._SHARES, "this torch has no copy-on-write storages that work"
    monkeypatch.setattr(sharing, "_SHARES", private)
    source = torch.arange(1.0, 5.0)
    tensors = {"source": source, "first": arrays.snapshot(source), "second": arrays.snapshot(source)}
    WRITES[write](tensors[side])
    assert {name for name, tensor in tensors.items() if tensor.tolist() != [1, 2, 3, 4]} == {side}


def test_no_memory_is_used_until_a_write():
    source = torch.zeros(4)
    taken = arrays.snapshot(source)
    assert torch._C._is_cow_tensor(taken)
    taken.add_(1)
    assert not torch._C._is_cow_tensor(taken)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.ones((2, 2), "float32")),
        lambda: torch.ones(2, 1).expand(2, 2),
        lambda: torch.ones(2, 2).T,
        lambda: torch.ones(2, 2, requires_grad=True),
        lambda: torch.nn.Parameter(torch.ones(2, 2)),
    ],
    ids=["memory of NumPy", "expanded", "transposed", "needs a gradient", "parameter"],
)
def test_what_cannot_be_shared_is_copied(make):
    source = make()
    taken = arrays.snapshot(source)
    assert taken.is_contiguous()
    assert not taken.requires_grad
    taken.add_(1)
    assert taken.tolist() == [[2, 2], [2, 2]]
    assert source.tolist() == [[1, 1], [1, 1]]


def test_optimizers_only_read_what_they_are_given():
    parameter = torch.nn.Parameter(torch.ones(3))
    source = torch.ones(3)
    parameter.grad = arrays.snapshot(source)
    torch.optim.AdamW([parameter], lr=0.1).step()
    torch.nn.utils.clip_grad_norm_([parameter], 0.1)
    assert source.tolist() == [1, 1, 1]
    assert parameter.grad.norm().item() == pytest.approx(0.1, rel=1e-4)  # clip_grad_norm_ adds 1e-6 to the norm

"""A small value that tells whether any bit of a tensor differs, by arithmetic that every device has."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from unigrad_torch.arrays import bits, unseen

_WIDTH = 2048
_LEVELS = 5
_BLOCKS = 16
_SMALL = 1 << 16

_weights: dict[torch.device, Tensor] = {}


class _OnDevice:
    """Fingerprint left on an accelerator; only a comparison waits for it."""

    __slots__ = ("value",)

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OnDevice) and bool(torch.equal(self.value, other.value))

    def __hash__(self) -> int:
        return hash(self.value.item())


def fingerprint(tensor: Any) -> Hashable:
    """Return the sum, modulo ``2**64``, of the tensor's 64-bit words times fixed pseudo-random odd numbers.

    Changed words change it with a probability of about ``1 - 2**-32`` or better. The words are
    weighted per row of 2048 and the rows by other weights, and so on, so that moved values count. Needs an eighth of the tensor's
    memory at most, and does not depend on its strides.
    """
    with unseen(), torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is torch.jagged:
            tensor = tensor.values()  # how it is cut follows from the input
        elif tensor.layout is not torch.strided:
            tensor = tensor.to_dense()
        if not tensor.numel() or tensor.is_meta:
            return 0
        value = _digest_blocks(bits(tensor))
    return value.item() if value.device.type == "cpu" else _OnDevice(value)


def _digest_blocks(tensor: Tensor) -> Tensor:
    while tensor.dim() > 1 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.numel() * tensor.element_size() <= _SMALL:
        return _digest(_aligned(tensor), 0)
    step = -(-tensor.shape[0] // _BLOCKS)
    blocks = [_digest(_aligned(block), 0) for block in tensor.split(step)]
    return _digest(torch.stack(blocks), _LEVELS - 1)


def _aligned(block: Tensor) -> Tensor:
    flat = block.contiguous().view(-1)
    return flat if flat.storage_offset() * flat.element_size() % 8 == 0 else flat.clone()


def _digest(flat: Tensor, level: int) -> Tensor:
    weights = _weights.get(flat.device)
    if weights is None:
        with _disable_current_modes():  # made once, so nobody is to count it as part of a step
            weights = _weights[flat.device] = _make_weights().to(flat.device)
    row = weights[level]
    whole = flat.numel() - flat.numel() % (8 // flat.element_size())
    words = _mixed(flat[:whole].view(torch.int64))
    rows = words.numel() // _WIDTH
    last = torch.cat([words[rows * _WIDTH :], _mixed(flat[whole:].to(torch.int64))])
    sums = (last * row[: last.numel()]).sum().view(1)
    if not rows:
        return sums[0]
    matrix = words[: rows * _WIDTH].view(rows, _WIDTH)
    # a product of matrix and vector makes no temporary, but accelerators have none of integers
    cpu = flat.device.type == "cpu"
    products = torch.mv(matrix, row[:_WIDTH]) if cpu else (matrix * row[:_WIDTH]).sum(1)
    return _digest(torch.cat([products, sums]), level + 1)


def _mixed(words: Tensor) -> Tensor:
    """Bring the upper bits into the lower ones: two flipped signs, ``2**63`` times an even number, would vanish in the sum."""
    return (words >> 32).add_(words)


def _make_weights() -> Tensor:
    generator = torch.Generator().manual_seed(0x5EED)
    limit = torch.iinfo(torch.int64)
    # longer than a row, for the elements that fill no whole word
    return torch.randint(limit.min, limit.max, (_LEVELS, _WIDTH + 8), generator=generator) | 1

"""Convolutions of plain operations, for the suite in float64, which MindSpore's kernels lack."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, ops


def convolve(x: Any, weight: Any, bias: Any, stride: tuple[int, int], padding: tuple[int, int]) -> Any:
    """Convolve ``x``, padded with zeros, with a weight ``(out, in, height, width)``."""
    x = _padded(x, padding)
    high, wide = ((x.shape[2 + axis] - weight.shape[2 + axis]) // stride[axis] + 1 for axis in (0, 1))
    found: Any = 0.0
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            part = _every(_every(x, 2, row, stride[0], high), 3, column, stride[1], wide)
            part = ops.transpose(part, (0, 2, 3, 1))
            found = found + ops.matmul(part, weight[:, :, row, column].T)
    if bias is not None:
        found = found + bias
    return ops.transpose(found, (0, 3, 1, 2))


def convolve_transposed(x: Any, weight: Any, bias: Any, stride: tuple[int, int], padding: tuple[int, int]) -> Any:
    """Transposed convolution of ``x`` with a weight ``(in, out, height, width)``: a convolution of what is spread by zeros."""
    flipped = ops.flip(ops.transpose(weight, (1, 0, 2, 3)), (2, 3))
    sides = tuple(size - 1 - side for size, side in zip(weight.shape[2:], padding, strict=True))
    return convolve(_spread(x, stride), flipped, bias, (1, 1), (sides[0], sides[1]))


def _every(x: Any, axis: int, start: int, step: int, count: int) -> Any:
    # not a slice: the kernel of the gradient of one with steps fails in float64
    return ops.gather(x, Tensor(np.arange(start, start + step * count, step)), axis)


def _zeros(*shape: int) -> Any:
    return Tensor(np.zeros(shape))


def _padded(x: Any, padding: tuple[int, int]) -> Any:
    for axis, size in ((2, padding[0]), (3, padding[1])):
        if size:
            sides = _zeros(*x.shape[:axis], size, *x.shape[axis + 1 :])
            x = ops.concat((sides, x, sides), axis)
    return x


def _spread(x: Any, stride: tuple[int, int]) -> Any:
    for axis in (2, 3):
        step, size = stride[axis - 2], x.shape[axis]
        if step == 1:
            continue
        x = ops.expand_dims(x, axis + 1)
        gap = _zeros(*x.shape[: axis + 1], step - 1, *x.shape[axis + 2 :])
        x = ops.concat((x, gap), axis + 1)
        x = ops.reshape(x, (*x.shape[:axis], size * step, *x.shape[axis + 2 :]))
        x = ops.narrow(x, axis, 0, (size - 1) * step + 1)
    return x

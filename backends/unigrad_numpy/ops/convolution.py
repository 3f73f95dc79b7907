"""Convolution and transposed convolution of images, as matrix products of unfolded windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from unigrad_numpy.ops.base import Array, needed_by, operands, record
from unigrad_numpy.tensor import Tensor

__all__ = ["conv2d", "conv_transpose2d"]

Pair = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, int]:
    """Return a setting for both image axes."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def windows(x: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Array:
    """Return a read-only view ``(channels, kh, kw, batch, out_h, out_w)`` of ``x`` ``(batch, channels, h, w)``."""
    n, c, h, w = x.shape
    (kh, kw), (sh, sw), (dh, dw) = kernel, stride, dilation
    oh, ow = (h - dh * (kh - 1) - 1) // sh + 1, (w - dw * (kw - 1) - 1) // sw + 1
    bn, bc, bh, bw = x.strides
    return np.lib.stride_tricks.as_strided(
        x, (c, kh, kw, n, oh, ow), (bc, bh * dh, bw * dw, bn, bh * sh, bw * sw), writeable=False
    )


def scatter(
    columns: Array, size: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int] = (1, 1)
) -> Array:
    """Sum windows ``(channels, kh, kw, batch, out_h, out_w)`` into images ``(batch, channels, *size)``."""
    c, kh, kw, n, oh, ow = columns.shape
    (sh, sw), (dh, dw) = stride, dilation
    out = np.zeros((n, c, *size), columns.dtype)
    for i in range(kh):
        for j in range(kw):
            rows = slice(i * dh, i * dh + sh * (oh - 1) + 1, sh)
            cols = slice(j * dw, j * dw + sw * (ow - 1) + 1, sw)
            out[:, :, rows, cols] += columns[:, i, j].transpose(1, 0, 2, 3)
    return out


def padded(x: Array, padding: tuple[int, int], value: float = 0.0) -> Array:
    """Return ``x`` with a border of ``padding`` around its images, itself if there is none."""
    if padding == (0, 0):
        return x
    (ph, pw), (n, c, h, w) = padding, x.shape
    out = np.full((n, c, h + 2 * ph, w + 2 * pw), x.dtype.type(value))
    out[:, :, ph : ph + h, pw : pw + w] = x
    return out


def cropped(x: Array, padding: tuple[int, int]) -> Array:
    """Return ``x`` without a border of ``padding``."""
    (ph, pw), (_, _, h, w) = padding, x.shape
    return x[:, :, ph : h - ph, pw : w - pw]


def _channels_first(x: Array) -> Array:
    """Return ``(batch, channels, h, w)`` as a matrix ``(channels, batch * h * w)``."""
    n, c, h, w = x.shape
    return x.transpose(1, 0, 2, 3).reshape(c, n * h * w)


def _kernels(weight: Array) -> Array:
    """Return kernels as the rows of a matrix."""
    return weight.reshape(len(weight), math.prod(weight.shape[1:]))


def _columns(view: Array) -> Array:
    """Return :func:`windows` as the columns of a matrix."""
    return view.reshape(math.prod(view.shape[:3]), math.prod(view.shape[3:]))


def _batch_first(matrix: Array, batch: int, size: tuple[int, int]) -> Array:
    """Undo :func:`_channels_first`."""
    return np.ascontiguousarray(matrix.reshape(len(matrix), batch, *size).transpose(1, 0, 2, 3))


def _with_bias(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, channels: int, array: Array) -> Any:
    if bias is None:
        return (x, weight), array
    _, bias = operands(weight, bias, name)
    if bias.shape != (channels,):
        raise ValueError(f"{name}: a bias of shape {bias.shape} does not fit a weight of shape {weight.shape}")
    array += bias._array[:, None, None]
    return (x, weight, bias), array


def conv2d(
    x: Any, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1
) -> Tensor:
    """Cross-correlate images with kernels.

    Parameters
    ----------
    x
        Shape ``(batch, in, height, width)``.
    weight
        Shape ``(out, in, kernel height, kernel width)``.
    bias
        Shape ``(out,)`` or None.
    stride, padding, dilation
        In pixels, one number or one for each image axis.

    Returns
    -------
    Tensor
        Shape ``(batch, out, height', width')``.
    """
    x, weight = operands(x, weight, "conv2d")
    stride, padding, dilation = pair(stride), pair(padding), pair(dilation)
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"conv2d: images of shape {x.shape} do not fit a weight of shape {weight.shape}")
    image = padded(x._array, padding)
    if any(n < d * (k - 1) + 1 for n, d, k in zip(image.shape[2:], dilation, weight.shape[2:], strict=True)):
        raise ValueError(f"conv2d: images of shape {x.shape} are smaller than a weight of shape {weight.shape}")
    columns = windows(image, weight.shape[2:], stride, dilation)  # type: ignore[arg-type]
    size = columns.shape[4:]
    matrix = _kernels(weight._array) @ _columns(columns)
    array = _batch_first(matrix, x.shape[0], size)  # type: ignore[arg-type]
    inputs, array = _with_bias("conv2d", x, weight, bias, weight.shape[0], array)
    context = (x.shape, weight.shape, stride, padding, dilation)
    return record("conv2d", array, inputs, _conv2d_vjp, (needed_by(weight, x), needed_by(x, weight)), context)


def _conv2d_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, weight = saved
    (n, c, h, w), shape, stride, padding, dilation = context
    matrix = _channels_first(g)
    dx = dw = None
    if needs[0]:
        columns = _kernels(weight).T @ matrix
        columns = columns.reshape(c, *shape[2:], n, *g.shape[2:])
        dx = cropped(scatter(columns, (h + 2 * padding[0], w + 2 * padding[1]), stride, dilation), padding)
    if needs[1]:
        columns = windows(padded(x, padding), shape[2:], stride, dilation)[..., : g.shape[2], : g.shape[3]]
        dw = (matrix @ _columns(columns).T).reshape(shape)
    return (dx, dw, *((matrix.sum(axis=1) if needs[2] else None,) if len(needs) == 3 else ()))


def conv_transpose2d(
    x: Any, weight: Tensor, bias: Tensor | None = None, stride: Pair = 1, padding: Pair = 0, output_padding: Pair = 0
) -> Tensor:
    """Spread each pixel over a kernel: the transpose of :func:`conv2d`.

    Parameters
    ----------
    x
        Shape ``(batch, in, height, width)``.
    weight
        Shape ``(in, out, kernel height, kernel width)``.
    bias
        Shape ``(out,)`` or None.
    stride
        Distance between the kernels of neighbouring pixels.
    padding
        Pixels cut from each side of the result.
    output_padding
        Pixels added at the end of each image axis of the result.

    Returns
    -------
    Tensor
        Shape ``(batch, out, height', width')``.
    """
    x, weight = operands(x, weight, "conv_transpose2d")
    stride, padding, extra = pair(stride), pair(padding), pair(output_padding)
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[0]:
        raise ValueError(f"conv_transpose2d: images of shape {x.shape} do not fit a weight of shape {weight.shape}")
    n, _, h, w = x.shape
    _, channels, kh, kw = weight.shape
    size = ((h - 1) * stride[0] + kh + extra[0], (w - 1) * stride[1] + kw + extra[1])
    if any(length <= 2 * cut for length, cut in zip(size, padding, strict=True)):
        raise ValueError(f"conv_transpose2d: nothing is left of a result of {size} pixels after a padding of {padding}")
    columns = _kernels(weight._array).T @ _channels_first(x._array)
    full = scatter(columns.reshape(channels, kh, kw, n, h, w), size, stride)
    array = np.ascontiguousarray(cropped(full, padding))
    inputs, array = _with_bias("conv_transpose2d", x, weight, bias, channels, array)
    context = (x.shape, weight.shape, stride, padding)
    saved = (needed_by(weight, x), needed_by(x, weight))
    return record("conv_transpose2d", array, inputs, _conv_transpose2d_vjp, saved, context)


def _conv_transpose2d_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, weight = saved
    (n, _, h, w), shape, stride, padding = context
    columns = _columns(windows(padded(g, padding), shape[2:], stride)[..., :h, :w])
    dx = dw = None
    if needs[0]:
        dx = _batch_first(_kernels(weight) @ columns, n, (h, w))
    if needs[1]:
        dw = (_channels_first(x) @ columns.T).reshape(shape)
    return (dx, dw, *((g.sum(axis=(0, 2, 3)) if needs[2] else None,) if len(needs) == 3 else ()))

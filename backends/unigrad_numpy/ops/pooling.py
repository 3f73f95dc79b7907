"""Largest and mean value over windows of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy.ops.base import float_tensor, record
from unigrad_numpy.ops.convolution import Pair, cropped, padded, pair, scatter, windows
from unigrad_numpy.tensor import Tensor

__all__ = ["avg_pool2d", "max_pool2d"]


def _checked(name: str, x: Any, size: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    x = float_tensor(x, name)
    if x.ndim != 4:
        raise ValueError(f"{name} needs images of shape (batch, channels, height, width), not {x.shape}")
    if any(n + 2 * p < k for n, p, k in zip(x.shape[2:], padding, size, strict=True)):
        raise ValueError(f"{name}: windows of {size} pixels are larger than images of shape {x.shape}")
    if any(2 * p > k for p, k in zip(padding, size, strict=True)):
        raise ValueError(f"{name}: a padding of {padding} is more than half of a window of {size}")
    return x


def max_pool2d(x: Any, size: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    """Largest element of each window; at a tie the first gets the derivative.

    Parameters
    ----------
    x
        Shape ``(batch, channels, height, width)``.
    size, stride, padding
        In pixels; the stride is the size of the window by default. A border never wins.
    """
    size, padding = pair(size), pair(padding)
    stride = size if stride is None else pair(stride)
    x = _checked("max_pool2d", x, size, padding)
    image = padded(x._array, padding, -np.inf)
    view = windows(image, size, stride)
    candidates = view.reshape(view.shape[0], size[0] * size[1], *view.shape[3:])
    winner = candidates.argmax(axis=1)
    array = np.take_along_axis(candidates, winner[:, None], axis=1)[:, 0]
    # The place in a window needs one byte for all usual windows.
    winner = winner.astype(np.min_scalar_type(size[0] * size[1]))
    array = np.ascontiguousarray(array.transpose(1, 0, 2, 3))
    return record("max_pool2d", array, (x,), _max_pool2d_vjp, (winner,), (image.shape[2:], size, stride, padding))


def _max_pool2d_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    image, size, stride, padding = context
    (winner,) = saved
    place = np.arange(size[0] * size[1], dtype=winner.dtype).reshape(*size, 1, 1, 1)
    columns = np.where(winner[:, None, None] == place, g.transpose(1, 0, 2, 3)[:, None, None], g.dtype.type(0))
    return (cropped(scatter(columns, image, stride), padding),)


def avg_pool2d(x: Any, size: Pair, stride: Pair | None = None) -> Tensor:
    """Mean of each window; arguments as of :func:`max_pool2d`, without a border."""
    size = pair(size)
    stride = size if stride is None else pair(stride)
    x = _checked("avg_pool2d", x, size, (0, 0))
    array = np.ascontiguousarray(windows(x._array, size, stride).mean(axis=(1, 2)).transpose(1, 0, 2, 3))
    return record("avg_pool2d", array, (x,), _avg_pool2d_vjp, context=(x.shape[2:], size, stride))


def _avg_pool2d_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    image, size, stride = context
    share = (g / g.dtype.type(size[0] * size[1])).transpose(1, 0, 2, 3)[:, None, None]
    c, _, _, n, h, w = share.shape
    return (scatter(np.broadcast_to(share, (c, *size, n, h, w)), image, stride),)

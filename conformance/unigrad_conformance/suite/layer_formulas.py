"""The mathematics of the sample layers in NumPy, in the reference layout, written to be read and not to be fast."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = [
    "attention",
    "batch_norm",
    "conv2d",
    "conv_transpose2d",
    "dense",
    "embedding",
    "gelu",
    "gru",
    "hardswish",
    "layer_norm",
    "lstm",
    "max_pool2d",
]


def dense(
    x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | float = 0.0
) -> np.ndarray[Any, Any]:
    """Weight of shape ``(outputs, inputs)``."""
    return np.asarray(x @ weight.T + bias)


def conv2d(
    x: np.ndarray[Any, Any],
    weight: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any] | None = None,
    stride: int = 1,
    padding: int = 0,
) -> np.ndarray[Any, Any]:
    """Weight of shape ``(out, in, height, width)``, not flipped; ``padding`` zeros on each side."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height, width = weight.shape[2:]
    rows = range(0, x.shape[2] - height + 1, stride)
    columns = range(0, x.shape[3] - width + 1, stride)
    out = np.zeros((len(x), len(weight), len(rows), len(columns)))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            window = x[:, :, row : row + height, column : column + width]
            out[:, :, i, j] = np.einsum("bchw,ochw->bo", window, weight)
    return out if bias is None else out + bias[:, None, None]


def conv_transpose2d(
    x: np.ndarray[Any, Any],
    weight: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any] | None = None,
    stride: int = 1,
    padding: int = 0,
) -> np.ndarray[Any, Any]:
    """Weight of shape ``(in, out, height, width)``: every element of ``x`` adds a scaled kernel; ``padding`` is cut off each side."""
    height, width = weight.shape[2:]
    shape = ((x.shape[2] - 1) * stride + height, (x.shape[3] - 1) * stride + width)
    out = np.zeros((len(x), weight.shape[1], *shape))
    for i in range(x.shape[2]):
        for j in range(x.shape[3]):
            scaled = np.einsum("bc,cohw->bohw", x[:, :, i, j], weight)
            out[:, :, i * stride : i * stride + height, j * stride : j * stride + width] += scaled
    out = out[:, :, padding : shape[0] - padding, padding : shape[1] - padding]
    return out if bias is None else out + bias[:, None, None]


def max_pool2d(x: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """Windows side by side; what fills no window is cut off."""
    rows, columns = x.shape[2] // size, x.shape[3] // size
    cut = x[:, :, : rows * size, : columns * size]
    return np.asarray(cut.reshape(*x.shape[:2], rows, size, columns, size).max((3, 5)))


def batch_norm(
    x: np.ndarray[Any, Any],
    weight: np.ndarray[Any, Any],
    bias: np.ndarray[Any, Any],
    epsilon: float,
    statistics: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None,
) -> np.ndarray[Any, Any]:
    """Channels on axis 1; by the batch's mean and biased variance unless ``statistics`` are given."""
    axes = (0, *range(2, x.ndim))
    shape = (1, -1, *(1,) * (x.ndim - 2))
    mean, variance = (x.mean(axes), x.var(axes)) if statistics is None else statistics
    scaled = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + epsilon)
    return np.asarray(scaled * weight.reshape(shape) + bias.reshape(shape))


def layer_norm(
    x: np.ndarray[Any, Any], weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any], epsilon: float
) -> np.ndarray[Any, Any]:
    """Over the last axis, by the biased variance."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + epsilon) * weight + bias)


def embedding(ids: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows of the table."""
    return np.asarray(weight[ids])


def gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``x`` times the normal distribution function, not an approximation of it."""
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)


def hardswish(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``x * relu6(x + 3) / 6``."""
    return np.asarray(x * np.clip(x + 3, 0, 6) / 6)


def _sigmoid(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(1 / (1 + np.exp(-x)))


def lstm(
    x: np.ndarray[Any, Any],
    weight_ih: np.ndarray[Any, Any],
    weight_hh: np.ndarray[Any, Any],
    bias_ih: np.ndarray[Any, Any],
    bias_hh: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return the outputs of all steps of ``(batch, steps, features)``; gates ``i f g o``."""
    hidden = cell = np.zeros((len(x), weight_hh.shape[1]))
    outputs = []
    for step in range(x.shape[1]):
        gates = x[:, step] @ weight_ih.T + bias_ih + hidden @ weight_hh.T + bias_hh
        i, f, g, o = np.split(gates, 4, axis=1)
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        hidden = _sigmoid(o) * np.tanh(cell)
        outputs.append(hidden)
    return np.stack(outputs, 1)


def gru(
    x: np.ndarray[Any, Any],
    weight_ih: np.ndarray[Any, Any],
    weight_hh: np.ndarray[Any, Any],
    bias_ih: np.ndarray[Any, Any],
    bias_hh: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Return the outputs of all steps; gates ``r z n``, the reset applied after the hidden product."""
    hidden = np.zeros((len(x), weight_hh.shape[1]))
    outputs = []
    for step in range(x.shape[1]):
        from_input = np.split(x[:, step] @ weight_ih.T + bias_ih, 3, axis=1)
        from_hidden = np.split(hidden @ weight_hh.T + bias_hh, 3, axis=1)
        r, z = (_sigmoid(a + b) for a, b in zip(from_input[:2], from_hidden[:2], strict=True))
        n = np.tanh(from_input[2] + r * from_hidden[2])
        hidden = (1 - z) * n + z * hidden
        outputs.append(hidden)
    return np.stack(outputs, 1)


def attention(
    heads: int,
    x: np.ndarray[Any, Any],
    in_weight: np.ndarray[Any, Any],
    in_bias: np.ndarray[Any, Any],
    out_weight: np.ndarray[Any, Any],
    out_bias: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """Attention of ``(batch, steps, features)`` with itself; ``in_weight`` stacks those of query, key and value."""
    batch, steps, features = x.shape
    joint = (x @ in_weight.T + in_bias).reshape(batch, steps, 3, heads, features // heads)
    query, key, value = joint.transpose(2, 0, 3, 1, 4)
    scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(features // heads)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = powers / powers.sum(-1, keepdims=True) @ value
    return np.asarray(mixed.transpose(0, 2, 1, 3).reshape(batch, steps, features) @ out_weight.T + out_bias)

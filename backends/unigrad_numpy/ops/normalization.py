"""Batch and layer normalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy.ops.base import Array, float_tensor, operands, record
from unigrad_numpy.tensor import Tensor

__all__ = ["batch_norm", "batch_statistics", "layer_norm"]


def _normalize(
    name: str,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Array,
    scale: Array,
    axes: Any,
    features: Any,
    constant: bool,
) -> Tensor:
    """Return ``(x - mean) * scale * weight + bias``.

    ``axes`` are those the statistics were taken over, ``features`` those along which weight and bias differ;
    ``constant`` says that ``mean`` and ``scale`` do not depend on ``x``.
    """
    array = (x._array - mean) * scale
    inputs = [x]
    shape = tuple(length if axis in features else 1 for axis, length in enumerate(x.shape))
    if weight is not None:
        _, weight = operands(x, weight, name)
        inputs.append(weight)
        array = array * weight._array.reshape(shape)
    if bias is not None:
        _, bias = operands(x, bias, name)
        inputs.append(bias)
        array = array + bias._array.reshape(shape)
    over = tuple(axis for axis in range(x.ndim) if axis not in features)
    context = (axes, over, shape, constant, weight is not None, bias is not None)
    return record(name, array, tuple(inputs), _normalize_vjp, (x, mean, scale, weight), context)


def _normalize_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    x, mean, scale, weight = saved
    axes, over, shape, constant, has_weight, has_bias = context
    normal = (x - mean) * scale
    out: list[Any] = [None]
    if needs[0]:
        inner = g if weight is None else g * weight.reshape(shape)
        if not constant and inner.size:
            through = (inner * normal).mean(axis=axes, keepdims=True)
            inner = inner - inner.mean(axis=axes, keepdims=True) - normal * through
        out[0] = inner * scale
    if has_weight:
        out.append((g * normal).sum(axis=over) if needs[len(out)] else None)
    if has_bias:
        out.append(g.sum(axis=over) if needs[len(out)] else None)
    return tuple(out)


def _moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return mean and biased variance over ``axes``, which stay; no numbers where there are no elements."""
    if x.size:
        return x.mean(axis=axes, keepdims=True), x.var(axis=axes, keepdims=True)
    nothing = np.full([1 if axis in axes else length for axis, length in enumerate(x.shape)], x.dtype.type(np.nan))
    return nothing, nothing


def batch_statistics(x: Any) -> tuple[Array, Array]:
    """Return mean and biased variance of each channel of ``x`` ``(batch, channels, ...)``, shape ``(channels,)``."""
    x = float_tensor(x, "batch_norm")
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    mean, variance = _moments(x._array, axes)
    return mean.reshape(x.shape[1]), variance.reshape(x.shape[1])


def batch_norm(
    x: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    mean: Any = None,
    variance: Any = None,
    epsilon: float = 1e-5,
    from_batch: bool = False,
) -> Tensor:
    """Shift and scale each channel to mean 0 and variance 1, then by ``weight`` and ``bias``.

    Parameters
    ----------
    x
        Shape ``(batch, channels)`` or ``(batch, channels, height, width)``.
    weight, bias
        Shape ``(channels,)`` or None.
    mean, variance
        Shape ``(channels,)``; taken from the batch if None.
    epsilon
        Added to the variance.
    from_batch
        The given ``mean`` and ``variance`` are those of this batch, and gradients flow through them.
    """
    x = float_tensor(x, "batch_norm")
    if x.ndim < 2:
        raise ValueError(f"batch_norm needs a shape (batch, channels, ...), not {x.shape}")
    if mean is None or variance is None:
        mean, variance = batch_statistics(x)
        from_batch = True
    shape = (1, x.shape[1]) + (1,) * (x.ndim - 2)
    mean, variance = (np.array(getattr(part, "_array", part), dtype=x.dtype) for part in (mean, variance))
    for part in (mean, variance, weight, bias):
        if part is not None and part.shape != (x.shape[1],):
            raise ValueError(f"batch_norm: channels of shape {part.shape} do not fit an input of shape {x.shape}")
    scale = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(epsilon))
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    return _normalize(
        "batch_norm", x, weight, bias, mean.reshape(shape), scale.reshape(shape), axes, (1,), not from_batch
    )


def layer_norm(
    x: Any, weight: Tensor | None = None, bias: Tensor | None = None, epsilon: float = 1e-5, axes: int = 1
) -> Tensor:
    """Shift and scale the last ``axes`` axes of each sample to mean 0 and variance 1, then by ``weight`` and ``bias``.

    Parameters
    ----------
    x
        Shape ``(..., *features)``.
    weight, bias
        Shape ``features`` or None.
    epsilon
        Added to the variance.
    axes
        Number of feature axes.
    """
    x = float_tensor(x, "layer_norm")
    if not 1 <= axes <= x.ndim:
        raise ValueError(f"layer_norm over {axes} axes does not fit an input of shape {x.shape}")
    last = tuple(range(x.ndim - axes, x.ndim))
    for part in (weight, bias):
        if part is not None and part.shape != x.shape[-axes:]:
            raise ValueError(f"layer_norm: features of shape {part.shape} do not fit an input of shape {x.shape}")
    mean, variance = _moments(x._array, last)
    scale = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(epsilon))
    return _normalize("layer_norm", x, weight, bias, mean, scale, last, last, False)

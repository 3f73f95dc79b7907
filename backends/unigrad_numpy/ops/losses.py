"""Losses of one number."""

from __future__ import annotations

from typing import Any

import numpy as np

from unigrad_numpy.ops.arithmetic import mul, sub
from unigrad_numpy.ops.base import as_tensor, float_tensor, record
from unigrad_numpy.ops.reductions import log_probabilities, mean
from unigrad_numpy.tensor import Tensor

__all__ = ["cross_entropy", "mse"]


def mse(x: Any, target: Any) -> Tensor:
    """Mean of the squared differences; both must have one shape."""
    x, target = as_tensor(x), as_tensor(target)
    if x.shape != target.shape:
        raise ValueError(f"mse of shapes {x.shape} and {target.shape}")
    difference = sub(x, target)
    return mean(mul(difference, difference))


def cross_entropy(logits: Any, labels: Any, reduction: str = "mean") -> Tensor:
    """Negative logarithm of the softmax probability of the right class.

    Parameters
    ----------
    logits
        Shape ``(batch, classes, ...)``.
    labels
        Integer tensor of shape ``(batch, ...)``, each ``0 <= label < classes``.
    reduction
        ``"mean"``, ``"sum"`` or ``"none"``.
    """
    logits, labels = float_tensor(logits, "cross_entropy"), as_tensor(labels)
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy needs integer labels, not {labels.dtype}")
    if logits.ndim < 2 or (logits.shape[0], *logits.shape[2:]) != labels.shape:
        raise ValueError(f"cross_entropy: labels of shape {labels.shape} do not fit logits of shape {logits.shape}")
    rows = labels._array[:, None]
    if rows.size and (rows.min() < 0 or rows.max() >= logits.shape[1]):
        raise IndexError(f"labels from {rows.min()} to {rows.max()} do not fit {logits.shape[1]} classes")
    logarithms = log_probabilities(logits._array, 1)
    losses = -np.take_along_axis(logarithms, rows, axis=1)[:, 0]
    factor = logits.dtype.type(1 / max(losses.size, 1) if reduction == "mean" else 1)
    array = losses if reduction == "none" else losses.sum() * factor
    return record("cross_entropy", array, (logits,), _cross_entropy_vjp, (logarithms, labels), (reduction, factor))


def _cross_entropy_vjp(context: Any, saved: Any, g: Any, needs: Any) -> Any:
    logarithms, labels = saved
    reduction, factor = context
    difference = np.exp(logarithms)
    rows = labels[:, None]
    chosen = np.take_along_axis(difference, rows, axis=1) - logarithms.dtype.type(1)
    np.put_along_axis(difference, rows, chosen, axis=1)
    return (difference * (g[:, None] if reduction == "none" else g * factor),)

"""``arrays``: tensors to and from NumPy, and arithmetic on them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

__all__ = ["ArraysModule"]


class ArraysModule(Protocol):
    """``arrays``: tensors to and from NumPy, and arithmetic on them."""

    def is_tensor(self, obj: object) -> bool:
        """Whether ``obj`` is a native tensor or parameter."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Return the shape, with -1 for a size that a function that is being traced does not know yet."""

    def dtype(self, tensor: Any) -> str:
        """Return the NumPy-style name of the dtype, e.g. ``"float32"``."""

    def is_floating(self, tensor: Any) -> bool:
        """Whether the dtype is a real floating-point type."""

    def requires_gradient(self, tensor: Any) -> bool:
        """Whether the tensor is a trainable leaf or has a recorded graph."""

    def to_numpy(self, tensor: Any) -> Any:
        """Return the values as a C-contiguous NumPy copy (bfloat16 through ml_dtypes)."""

    def from_numpy(self, array: Any) -> Any:
        """Return a native tensor with a copy of the values, not needing a gradient."""

    def assign(self, tensor: Any, array: Any) -> None:
        """Write the values of a NumPy array (same shape and dtype) into the tensor, noticed by version checks."""

    def version(self, tensor: Any) -> Hashable:
        """Return something that changes when the tensor's values are written the ordinary way; None if the framework has no such thing."""

    def clone(self, tensor: Any) -> Any:
        """Return a copy that shares nothing with the tensor, contiguous and without a graph; a sparse buffer stays sparse."""

    def snapshot(self, tensor: Any) -> Any:
        """Return what ``clone`` returns, for a tensor that nobody but the core holds.

        It may share memory for as long as neither of the two is written.
        """

    def zeros(self, tensor: Any) -> Any:
        """Return zeros of the same shape, dtype and place."""

    def add(self, left: Any, right: Any) -> Any:
        """Return the sum of two tensors as a new tensor; recorded if recording is on. Sparse operands are made dense."""

    def scale(self, tensor: Any, factor: Any) -> Any:
        """Return the tensor times a Python or native scalar as a new tensor of the same dtype; recorded if recording is on."""

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Return the tensor in another dtype (itself if it has it)."""

    def clip_factor(self, tensors: Sequence[Any], maximum: float) -> Any:
        """Return ``min(1, maximum / norm)`` for the Euclidean norm over all ``tensors``.

        1 for no tensors or norm 0; NaN if the norm is NaN.
        """

    def narrow(self, tensor: Any, axis: int, start: int, stop: int) -> Any:
        """Return the part ``start:stop`` along ``axis`` as a view, connected to the tensor's graph."""

    def concat(self, tensors: Sequence[Any], axis: int) -> Any:
        """Join tensors along ``axis``, recorded."""

    def equal(self, left: Any, right: Any) -> bool:
        """Whether two tensors have the same shape, dtype and bits."""

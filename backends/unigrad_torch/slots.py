"""``.grad`` put aside while a backward writes it, and what hooks that run after its accumulation find and leave there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

plainly = torch._C.DisableTorchFunctionSubclass
"""Context in which leaves that wait for their first use are read and written like any other."""


class Slots:
    """The ``.grad`` of some tensors, emptied or filled for one backward, and put back by :meth:`restore`.

    Parameters
    ----------
    tensors
        Each once.
    contents
        Id of a tensor -> what its slot holds instead; nothing if it is not there.
    overwritten
        Ids of those whose present gradient lies in memory that the backward writes.
    """

    __slots__ = ("_before",)

    def __init__(self, tensors: Iterable[Any], contents: Mapping[int, Tensor], overwritten: set[int]) -> None:
        self._before: list[tuple[Any, Any, Any]] = []
        with plainly():
            for tensor in tensors:
                held = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
                copy = held.clone() if held is not None and id(tensor) in overwritten else None
                self._before.append((tensor, held, copy))
            for tensor, _, _ in self._before:
                if tensor.is_leaf or tensor.retains_grad:
                    tensor.grad = contents.get(id(tensor))

    def restore(self) -> None:
        """Put back the very tensors that were there, with the values that they had."""
        with plainly(), torch.no_grad():
            for tensor, held, copy in self._before:
                if tensor.is_leaf or tensor.retains_grad:
                    tensor.grad = held
                if copy is not None:
                    held.copy_(copy)


class Probe:
    """Sees the gradient of one leaf before, between and after its hooks, which may reduce it, change it, or step and clear it.

    The gradient is what the slot held at the last sight of it before a hook changed the parameter or took the gradient
    away.
    """

    __slots__ = ("_copy", "_hooks", "_keys", "_seen", "_seen_version", "_version", "used")

    def __init__(self, leaf: Any) -> None:
        self.used = False
        """Whether a hook changed the parameter or took the gradient away."""
        self._hooks = leaf._post_accumulate_grad_hooks
        self._version = leaf._version
        self._seen: Any = None
        self._seen_version = -1
        self._copy: Any = None
        hooks = list(self._hooks.items())
        self._keys = [object() for _ in range(len(hooks) + 1)]
        self._hooks.clear()
        self._hooks[self._keys[0]] = self._look
        for (key, hook), own in zip(hooks, self._keys[1:], strict=True):
            self._hooks[key] = hook
            self._hooks[own] = self._look

    def _look(self, leaf: Any) -> None:
        with plainly():
            gradient = leaf.grad
            self.used = leaf._version != self._version or (gradient is None and self._copy is not None)
            if gradient is None or self.used:
                return
            if gradient is self._seen and gradient._version == self._seen_version:
                return
            self._seen, self._seen_version = gradient, gradient._version
            # of its own: the hook may keep what it finds, or clear it in place
            self._copy = gradient.detach().clone()

    def remove(self) -> None:
        """Leave the hooks as they were."""
        for key in self._keys:
            self._hooks.pop(key, None)

    def gradient(self) -> Any | None:
        """Return the gradient; None if the leaf got none."""
        seen, copy = self._seen, self._copy
        self._seen = self._copy = None
        if copy is None:
            return None
        if seen._version != self._seen_version and seen.layout is torch.strided and bool(seen.count_nonzero()):
            return (
                seen.detach().clone()
            )  # one hook changed it in place, say reduced it, before it stepped and took it away
        return copy

"""``.grad`` put aside while a backward writes it, and what hooks that run after its accumulation find and leave there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from unigrad_torch.arrays import snapshot

plainly = torch._C.DisableTorchFunctionSubclass
"""Context in which leaves that wait for their first use are read and written like any other."""
_GRAD = attrgetter("grad")


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

    __slots__ = ("_copies", "_held", "_others", "_tensors")

    def __init__(self, tensors: Iterable[Any], contents: Mapping[int, Tensor], overwritten: set[int]) -> None:
        with plainly():
            tensors = list(tensors)
            # others have no slot of their own before the backward makes one
            self._tensors = [tensor for tensor in tensors if tensor.is_leaf or tensor.retains_grad]
            self._others = (
                [tensor for tensor in tensors if not tensor.is_leaf] if len(tensors) > len(self._tensors) else []
            )
            self._held = list(map(_GRAD, self._tensors))
            self._copies = [
                (held, held.clone())
                for tensor, held in zip(self._tensors, self._held, strict=True)
                if held is not None and id(tensor) in overwritten
            ]
            for tensor in self._tensors:
                tensor.grad = contents.get(id(tensor)) if contents else None

    def restore(self) -> None:
        """Put back the very tensors that were there, with the values that they had."""
        with plainly(), torch.no_grad():
            for tensor in self._others:
                if tensor.retains_grad:
                    tensor.grad = None
            for tensor, held in zip(self._tensors, self._held, strict=True):
                tensor.grad = held
            for held, copy in self._copies:
                held.copy_(copy)


class Probe:
    """Sees the gradient of one leaf before, between and after its hooks, which may reduce it, change it, or step and clear it.

    The gradient is what the slot held at the last sight of it before a hook changed the parameter or took the gradient
    away. Each hook is called by the probe, under its own key: a hook may remove itself or others meanwhile.
    """

    __slots__ = ("_copy", "_hooks", "_seen", "_seen_version", "_version", "_watched", "used")

    def __init__(self, leaf: Any, hooks: dict[Any, Any]) -> None:
        self.used = False
        """Whether a hook changed the parameter or took the gradient away."""
        self._hooks = hooks
        self._version = leaf._version
        self._seen: Any = None
        self._seen_version = -1
        self._copy: Any = None
        self._watched = [(key, hook, partial(self._call, hook)) for key, hook in hooks.items()]
        for key, _, watched in self._watched:
            hooks[key] = watched

    def _call(self, hook: Any, leaf: Any) -> None:
        if self._seen is None:
            self._look(leaf)
        hook(leaf)
        seen = self._seen
        if (
            leaf.grad is seen
            and seen is not None
            and seen._version == self._seen_version
            and leaf._version == self._version
        ):
            return
        self._look(leaf)

    def _look(self, leaf: Any) -> None:
        gradient = leaf.grad
        self.used = leaf._version != self._version or (gradient is None and self._copy is not None)
        if gradient is None or self.used:
            return
        # of its own: the hook may keep what it finds, or clear it in place; a hook that has run may look into its memory
        self._copy = snapshot(gradient) if self._seen is None else gradient.detach().clone()
        self._seen, self._seen_version = gradient, gradient._version

    def remove(self) -> None:
        """Leave the hooks as they were."""
        for key, hook, watched in self._watched:
            if self._hooks.get(key) is watched:
                self._hooks[key] = hook
        self._watched = []

    def gradient(self) -> Any | None:
        """Return the gradient; None if the leaf got none."""
        seen, copy = self._seen, self._copy
        self._seen = self._copy = None
        if copy is None:
            return None
        # one hook changed it in place, say reduced it, before it stepped and took it away
        changed = seen._version != self._seen_version and seen.layout is torch.strided and bool(seen.count_nonzero())
        return seen.detach().clone() if changed else copy

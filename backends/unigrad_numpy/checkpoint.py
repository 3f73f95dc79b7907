"""Recompute: a region keeps nothing of what its operations save, and runs again when a backward asks for it.

The graph of a region is the graph of the plain run, node for node; only what the nodes saved is missing. The first node
that a backward unpacks runs the whole region once more, which saves the same items in the same order. See
``unigrad.protocols.CheckpointModule``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from unigrad import tree
from unigrad.captures import name_in
from unigrad.errors import CapturedTensorError, RecomputeMismatchError
from unigrad.fingerprint import digest
from unigrad.protocols import Region
from unigrad.region_errors import parameters_created
from unigrad_numpy.graph import (
    Saved,
    changed_state,
    keep,
    next_serial,
    observe_uses,
    pass_cache,
    saved_hooks,
    unpack,
)
from unigrad_numpy.tensor import Tensor, wrap

__all__ = ["fingerprint", "run"]


def run(region: Region) -> Any:
    """Run the region now, and again in each backward that needs its inner values."""
    args, kwargs = region.args, region.kwargs
    leaves, layout = tree.flatten((args, kwargs))
    call = _Call(region, leaves, layout)
    region.let_go()
    with observe_uses(_Captures(call.start, leaves, region.function)), saved_hooks(call.pack, call.unpack):
        outputs = region.function(*args, **kwargs)
    call.end = next_serial()
    region.finish(outputs)
    call.complete = True
    return outputs


def fingerprint(tensor: Any) -> Hashable:
    """Return a digest of the bits of the tensor."""
    return digest(tensor._array)


class _Captures:
    """Refuses, at the forward, tensors with a graph that enter a region other than as arguments."""

    def __init__(self, start: int, leaves: list[Any], function: Any) -> None:
        self._start = start
        self._function = function
        self._nodes = {id(leaf.node) for leaf in leaves if isinstance(leaf, Tensor) and leaf.node is not None}

    def __call__(self, inputs: tuple[Tensor, ...]) -> None:
        for tensor in inputs:
            node = tensor.node
            if node is not None and node.serial < self._start and id(node) not in self._nodes:
                name = name_in(self._function, lambda value: value is tensor)  # noqa: B023  # called at once
                what = f"{name!r}, a tensor" if name else "a tensor"
                raise CapturedTensorError(
                    f"{what} of shape {tensor.shape} made by operation {node.name!r} outside of a checkpointed region is "
                    "used inside and needs a gradient; pass it as an argument of the function, or detach() it"
                )


class _Call:
    """One call of a region, as its nodes see it.

    Parameters
    ----------
    region
        The region.
    leaves, layout
        Its arguments.
    """

    def __init__(self, region: Region, leaves: list[Any], layout: tree.Layout) -> None:
        self.region = region
        self._layout = layout
        # Containers of its own and without the tensors: the function or its caller may change those that were given.
        self._like = tree.unflatten(layout, [None] * len(leaves), (region.args, region.kwargs))
        inputs: dict[int, _Input] = {id(leaf): _Input(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        self._inputs = [inputs.get(id(leaf), leaf) for leaf in leaves]
        self.complete = False
        self._count = 0
        self.start = self.end = next_serial()

    def pack(self, saved: Saved) -> int:
        """Keep the number of a saved item in place of the item."""
        self._count += 1
        return self._count - 1

    def unpack(self, number: int) -> Saved:
        """Return a saved item, from a recompute that serves the whole running backward."""
        cache = pass_cache()
        items = cache.get(self)
        if items is None or items[number] is None:
            # Nodes are run latest first: a call that began after this one ended will not be asked again.
            for other in [other for other in cache if isinstance(other, _Call) and other.start > self.end]:
                del cache[other]
            items = cache[self] = self._recompute()
        item, items[number] = items[number], None
        assert item is not None  # freshly made, or checked above
        return item

    def _recompute(self) -> list[Saved | None]:
        # A tensor that is given twice is one tensor in the recompute too.
        tensors = {id(leaf): leaf.value() for leaf in self._inputs if isinstance(leaf, _Input)}
        values = [tensors.get(id(leaf), leaf) for leaf in self._inputs]
        args, kwargs = tree.unflatten(self._layout, values, self._like)
        items: list[Saved | None] = []
        created: list[Any] = []

        def take(saved: Saved) -> Saved:
            items.append(saved)
            return saved

        with (
            self.region.replay(),
            changed_state(recording=True, created=(created,), observers=()),
            saved_hooks(take, _taken),
        ):
            outputs = self.region.function(*args, **kwargs)
        if not self.complete:  # a backward inside the function, while its forward still runs
            return list(items)
        if created:
            raise parameters_created(str(parameter.shape) for parameter in created)
        self.region.check(outputs)
        if len(items) != self._count:
            raise RecomputeMismatchError(
                f"the recompute of a checkpointed region saved {len(items)} values, its forward {self._count}: "
                "the function must do the same on each call"
            )
        return items


class _Input:
    """A tensor argument, kept as what surrounds the region keeps things."""

    def __init__(self, tensor: Tensor) -> None:
        self._leaf = tensor if tensor.node is None else None
        self._requires_grad = tensor.requires_grad
        self._kept = keep(Saved(tensor._array, tensor._counter, tensor.version))

    def value(self) -> Tensor:
        """Return the leaf itself, or a leaf in place of a tensor that was made outside."""
        array = unpack(self._kept, "checkpoint")
        if self._leaf is not None:
            return self._leaf
        tensor = wrap(array)
        tensor.requires_grad = self._requires_grad
        return tensor


def _taken(payload: Saved) -> Saved:
    return payload

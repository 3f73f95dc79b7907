"""microbatch: a part of a model run in parts of the batch, one part's activations alive at a time."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from unigrad import random, tree
from unigrad.block import Block
from unigrad.buffers import copies, differs, places
from unigrad.checkpoint import Rerun, adapt, common_backend, held, run
from unigrad.errors import ArgumentError, ArgumentTypeError, BatchCoupledError, UnsupportedError
from unigrad.losses import check_flag
from unigrad.meeting import Meetings
from unigrad.names import patterns_of
from unigrad.protocols import Backend
from unigrad.turns import Turn

__all__ = ["microbatch"]

ONCE = (bool, int, float, str, type(None))
RULES = ("sum", "mean")


def microbatch(
    target: Any,
    size: int | np.integer[Any],
    *,
    blocks: Any = None,
    batch_axis: int = 0,
    whole: Sequence[str] = (),
    combine: Any = None,
    verify: bool = False,
    allow_coupled: bool = False,
) -> Any:
    """Return ``target`` run in parts of at most ``size`` samples, forward and backward.

    Parameters
    ----------
    target
        A block, a native model, or a function.
    size
        Samples per part, at least 1; the last part may be smaller.
    blocks
        For a function: the blocks that it calls.
    batch_axis
        Axis of the batch in every tensor argument and output, 0 or more.
    whole
        Names of arguments that are given whole to each part.
    combine
        What to do with outputs of no dimension, one per part (auxiliary losses): ``"sum"``, ``"mean"`` (weighted by the samples of
        the parts) or a callable that takes the list of them. A mapping of output key or position to such a rule says it for one output
        of any shape.
    verify
        Whether each call first probes, by three unrecorded runs, that samples do not depend on each other, and that the batch axis
        of the outputs is one. Without it the first call looks at the batch axis alone, in one unrecorded run of another length, unless its
        last part has one.
    allow_coupled
        Whether layers that couple samples (batch normalization in training) may run with the statistics of each part.

    Returns
    -------
    object
        A block for a block, a native model for a native model, a function for a function.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For a size below 1, and at the call for an empty batch, differing batches, or outputs without the batch axis.
    BatchCoupledError
        At the call, naming the layer; what the call moved is put back.

    Notes
    -----
    Equal to the same loop over parts in one graph, bit for bit as :func:`unigrad.checkpoint` is, and to the whole batch up to
    rounding. No copy of the inputs is made. Clauses M1 to M7.

    Examples
    --------
    >>> import numpy as np
    >>> import unigrad
    >>> from unigrad_numpy import Tensor, nn
    >>> neck = unigrad.microbatch(nn.Linear(3, 2), size=4)
    >>> neck(Tensor(np.ones((10, 3), "float32"))).shape
    (10, 2)
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise ArgumentTypeError(f"size is a whole number of samples, not {size!r}")
    if size < 1:
        raise ArgumentError(f"size is at least 1 sample, not {size}")
    if isinstance(batch_axis, bool) or not isinstance(batch_axis, int) or batch_axis < 0:
        raise ArgumentError(f"batch_axis is 0 or more, not {batch_axis!r}")
    for value, name in ((verify, "verify"), (allow_coupled, "allow_coupled")):
        check_flag(value, name)
    rules = list(combine.values()) if isinstance(combine, Mapping) else [combine]
    for rule in rules:
        if rule is not None and rule not in RULES and not callable(rule):
            raise ArgumentError(f"combine is 'sum', 'mean', a callable, or a mapping to these, not {rule!r}")
    parts = Parts(int(size), batch_axis, patterns_of(whole, "whole"), combine, verify, allow_coupled)
    return adapt(target, parts, blocks, "microbatch")


class Parts(Rerun):
    """What a microbatched model does in place of its forward; only settings.

    Parameters
    ----------
    size, batch_axis, whole, combine, verify, allow_coupled
        See :func:`microbatch`.
    """

    what = "a microbatch"

    def __init__(
        self, size: int, batch_axis: int, whole: tuple[str, ...], combine: Any, verify: bool, allow_coupled: bool
    ) -> None:
        super().__init__(True)
        self.size = size
        self.axis = batch_axis
        self.whole = whole
        self.combine = combine
        self.probe = verify
        self.allow_coupled = allow_coupled
        self.settled: set[tuple[str, int]] = set()

    def apply(
        self, function: Callable[..., Any], blocks: list[Block], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function over blocks in parts of the batch."""
        buffers = places(blocks)
        layers: frozenset[int] = frozenset().union(*(block.layers() for block in blocks))
        with Turn(layers, bool(buffers)):
            return self._in_parts(function, blocks, args, kwargs)

    def _in_parts(
        self, function: Callable[..., Any], blocks: list[Block], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        backend = common_backend(blocks, args, kwargs)
        leaves, layout = tree.flatten((args, kwargs))
        split = self._which(backend, function, args, kwargs, leaves)
        batch = self._batch(backend, leaves, layout, split)
        ranges = [(start, min(start + self.size, batch)) for start in range(0, batch, self.size)]

        def part(start: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
            narrow = backend.arrays.narrow
            cut = [
                narrow(leaf, self.axis, start, stop) if yes else leaf for leaf, yes in zip(leaves, split, strict=True)
            ]
            inner: tuple[tuple[Any, ...], dict[str, Any]] = tree.unflatten(layout, cut, (args, kwargs))
            return inner

        if not self.allow_coupled:
            self._refuse_coupled(backend, blocks)
        if self.probe and batch > 1:
            self._probe(backend, function, blocks, leaves, split, layout, (args, kwargs), batch)
        guard = None if self.allow_coupled else _Guard(backend, blocks)
        outputs = []
        shared: dict[Any, Any] = {}
        around = getattr(backend.checkpoint, "part", None)
        for start, stop in ranges:
            inner_args, inner_kwargs = part(start, stop)
            with guard or nullcontext(), around(shared) if around is not None else nullcontext():
                outputs.append(run(function, blocks, inner_args, inner_kwargs, self.verify, shared))
        if batch > self.size and batch % self.size == 0:
            self._tell_axes_apart(backend, function, blocks, part, outputs[0])
        return self._merge(backend, outputs, [stop - start for start, stop in ranges])

    def _which(
        self,
        backend: Backend,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[Any],
    ) -> list[bool]:
        """For each leaf of the arguments, whether it is split."""
        try:
            declared = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            declared = []
        names = [one.name for one in declared if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        labelled = [(names[index] if index < len(names) else str(index), value) for index, value in enumerate(args)]
        labelled += list(kwargs.items())
        alone = {one.name for one in declared if one.kind is one.KEYWORD_ONLY}
        known = {label for label, _ in labelled}.union(names, alone)
        unknown = [name for name in self.whole if name not in known]
        if unknown:
            raise ArgumentError(
                f"whole= names {', '.join(unknown)}, but the arguments are: {', '.join(label for label, _ in labelled) or 'none'}"
            )
        split = []
        for label, value in labelled:
            split += [backend.arrays.is_tensor(leaf) and label not in self.whole for leaf in tree.flatten(value)[0]]
        assert len(split) == len(leaves)  # the same leaves, argument by argument
        return split

    def _batch(self, backend: Backend, leaves: list[Any], layout: tree.Layout, split: list[bool]) -> int:
        shape = backend.arrays.shape
        sizes: dict[str, int] = {}
        for path, leaf, yes in zip(layout.paths("argument"), leaves, split, strict=True):
            if not yes:
                continue
            dims = shape(leaf)
            if len(dims) <= self.axis:
                raise ArgumentError(
                    f"{path} has shape {dims}, so no axis {self.axis} to split; name it in whole= to give it whole"
                )
            sizes[path] = dims[self.axis]
        if not sizes:
            raise ArgumentError("microbatch needs at least one tensor argument to split")
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{path} has {count}" for path, count in sizes.items())
            raise ArgumentError(
                f"the arguments differ in their batch (axis {self.axis}): {listed}; name in whole= what is not split"
            )
        batch = next(iter(sizes.values()))
        if batch == 0:
            raise ArgumentError("the batch is empty; microbatch needs at least one sample")
        if batch < 0:
            raise UnsupportedError(
                "the size of the batch is not known yet in the function that is being traced, so it can't be split; give the function an "
                "input signature that says it"
            )
        return batch

    def _refuse_coupled(self, backend: Backend, blocks: list[Block]) -> None:
        for block in blocks:
            for _, part in block.parts():
                if part.inner is None:
                    continue
                with held([part.frozen()]):
                    path = backend.block.couples_samples(part.inner)
                if path is not None:
                    raise _coupled(path or type(part.inner).__name__, "computes statistics over the batch")

    def _probe(
        self,
        backend: Backend,
        function: Callable[..., Any],
        blocks: list[Block],
        leaves: list[Any],
        split: list[bool],
        layout: tree.Layout,
        like: Any,
        batch: int,
    ) -> None:
        """Change each half of a small batch in turn: the outputs of the other half must keep their bits."""
        arrays = backend.arrays
        half = min(self.size, batch // 2)
        halves = ((0, half), (half, 2 * half))

        def other(leaf: Any, part: Any) -> Any:
            """Return other samples of the same kind in place of a half."""
            one = arrays.narrow(leaf, self.axis, 0, 1)
            twin = arrays.concat([one] * half, self.axis)
            return arrays.scale(part, 2.0) if arrays.equal(twin, part) and arrays.is_floating(leaf) else twin

        def run(changed: int | None) -> dict[str, Any]:
            made = []
            for leaf, yes in zip(leaves, split, strict=True):
                if not yes:
                    made.append(leaf)
                    continue
                parts = [arrays.narrow(leaf, self.axis, *bounds) for bounds in halves]
                if changed is not None:
                    parts[changed] = other(leaf, parts[changed])
                made.append(arrays.concat(parts, self.axis))
            args, kwargs = tree.unflatten(layout, made, like)
            with _Untouched(backend, blocks), backend.tape.no_record():
                found, nesting = tree.flatten(function(*args, **kwargs))
                outputs = {}
                for path, item in zip(nesting.paths("output"), found, strict=True):
                    if arrays.is_tensor(item) and self._rule(path, len(arrays.shape(item))) is None:
                        self._require_batch(path, arrays.shape(item), 2 * half)
                        outputs[path] = arrays.clone(item)
                return outputs

        before = run(None)
        for changed, kept in ((1, 0), (0, 1)):
            after = run(changed)
            if before.keys() != after.keys():
                raise _coupled("the nesting of the outputs", "changes when only some samples change")
            for path in before:
                left, right = (arrays.narrow(found[path], self.axis, *halves[kept]) for found in (before, after))
                if not arrays.equal(left, right):
                    raise _coupled(path, "changes for some samples when only other samples change")

    def _tell_axes_apart(
        self,
        backend: Backend,
        function: Callable[..., Any],
        blocks: list[Block],
        part: Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]],
        outputs: Any,
    ) -> None:
        """Run a part of another length, once for each output: its batch axis must follow.

        Where all parts have one length, an axis that is as long by chance would else be joined as if it were the batch: the layers of a
        recurrent layer's state, the features of a mean over the batch.
        """
        new = self._lengths(backend, outputs).keys() - self.settled
        if not new:
            return
        length = self.size - 1 or 2
        args, kwargs = part(0, length)
        try:
            with _Untouched(backend, blocks), backend.tape.no_record():
                shapes = self._lengths(backend, function(*args, **kwargs))
        except Exception:  # a function may take parts of this length only; its other parts have run
            return
        for key in new & shapes.keys():
            self._require_batch(key[0], shapes[key], length)
        self.settled |= new

    def _lengths(self, backend: Backend, outputs: Any) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return the shapes of the outputs that are joined, by path and number of axes."""
        found, nesting = tree.flatten(outputs)
        shapes = [
            (path, tuple(backend.arrays.shape(item)))
            for path, item in zip(nesting.paths("output"), found, strict=True)
            if backend.arrays.is_tensor(item)
        ]
        return {(path, len(shape)): shape for path, shape in shapes if self._rule(path, len(shape)) is None}

    def _require_batch(self, path: str, shape: tuple[int, ...], size: int) -> None:
        if len(shape) <= self.axis or shape[self.axis] != size:
            raise ArgumentError(
                f"{path} has shape {shape} for a part of {size} samples, so no batch axis {self.axis}; give combine='sum', 'mean' or a "
                "callable if it is one value a part"
            )

    def _merge(self, backend: Backend, outputs: list[Any], sizes: list[int]) -> Any:
        flat = [tree.flatten(output) for output in outputs]
        layout = flat[0][1]
        if any(other != layout for _, other in flat):
            raise ArgumentError("the parts returned differently nested outputs, so they can't be joined")
        if isinstance(self.combine, Mapping):
            paths = list(layout.paths("output"))
            unknown = [key for key in self.combine if f"output[{key!r}]" not in paths]
            if unknown:
                raise ArgumentError(
                    f"combine= names {', '.join(map(repr, unknown))}, but the outputs are: {', '.join(paths)}"
                )
        merged = [
            self._join(backend, path, values, sizes)
            for path, values in zip(
                layout.paths("output"), zip(*(leaves for leaves, _ in flat), strict=True), strict=True
            )
        ]
        return tree.unflatten(layout, merged, outputs[0])

    def _join(self, backend: Backend, path: str, values: tuple[Any, ...], sizes: list[int]) -> Any:
        arrays = backend.arrays
        if not arrays.is_tensor(values[0]):
            if isinstance(values[0], ONCE) and all(
                type(value) is type(values[0]) and (value == values[0] or (value != value and values[0] != values[0]))
                for value in values
            ):
                return values[0]
            raise ArgumentError(
                f"{path} is {values[0]!r} in the first part and differs in others; return a tensor, or the same value"
            )
        rule = self._rule(path, len(arrays.shape(values[0])))
        if rule is not None:
            return self._combine(backend, path, rule, list(values), sizes)
        for value, size in zip(values, sizes, strict=True):
            self._require_batch(path, arrays.shape(value), size)
        return values[0] if len(values) == 1 else arrays.concat(list(values), self.axis)

    def _rule(self, path: str, dimensions: int) -> Any:
        if isinstance(self.combine, Mapping):
            for key, rule in self.combine.items():
                if path == f"output[{key!r}]":
                    return rule
            return None
        return self.combine if dimensions == 0 else None

    @staticmethod
    def _combine(backend: Backend, path: str, rule: Any, values: list[Any], sizes: list[int]) -> Any:
        if callable(rule):
            return rule(values)
        arrays = backend.arrays
        dtype = arrays.dtype(values[0])
        if dtype == "bool" or (rule == "mean" and not (arrays.is_floating(values[0]) or dtype.startswith("complex"))):
            raise ArgumentError(
                f"{path} is {dtype}, of which {rule!r} is no {dtype}; return it as a floating value, or give a callable"
            )
        total = sum(sizes)
        if rule == "mean":
            values = [arrays.scale(value, size / total) for value, size in zip(values, sizes, strict=True)]
        joined = values[0]
        for value in values[1:]:
            joined = arrays.add(joined, value)
        return joined


def _coupled(layer: str, why: str) -> BatchCoupledError:
    return BatchCoupledError(
        f"{layer} {why}, so the batch can't be split without changing the result. Freeze it or put it in inference mode, leave it "
        "outside the microbatched part, or pass allow_coupled=True to use the statistics of each part"
    )


class _Untouched:
    """Runs something that must leave buffers and random state as they were."""

    def __init__(self, backend: Backend, blocks: list[Block]) -> None:
        self.backend = backend
        self.entries = places(blocks)
        self.generators = [item for block in blocks for item in block.structure().generators.values()]

    def __enter__(self) -> None:
        block = self.backend.block
        self.random = random.snapshot(self.backend, self.generators)
        self.live = block.swap(self.entries, copies(self.backend, [entry.tensor for entry in self.entries]))

    def __exit__(self, *details: object) -> None:
        self.backend.block.swap(self.entries, self.live)
        self.random.restore()


class _Guard:
    """Notices a buffer that a part has moved, puts back what all parts moved, and raises."""

    def __init__(self, backend: Backend, blocks: list[Block]) -> None:
        self.backend = backend
        self.entries = places(blocks)
        self.values = copies(backend, [entry.tensor for entry in self.entries])
        self.random = random.snapshot(
            backend, [item for block in blocks for item in block.structure().generators.values()]
        )
        guard = weakref.proxy(self)  # the two would hold each other, and so the copies
        self.meetings = Meetings(backend, blocks, lambda block: guard.meet(block))

    def meet(self, block: Block) -> None:
        """Take in the block of a model that a part is about to call and that nobody had named."""
        entries = places([block])
        self.entries += entries
        self.values += copies(self.backend, [entry.tensor for entry in entries])

    def __enter__(self) -> None:
        self.watching = self.meetings.watched()
        self.watching.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.watching.__exit__(None, None, None)
        if kind is not None or not self.entries:
            return
        block, arrays = self.backend.block, self.backend.arrays
        originals = [entry.tensor for entry in self.entries]
        now = block.swap(self.entries, originals)
        moved = [
            entry.name
            for entry, tensor, value in zip(self.entries, now, self.values, strict=True)
            if not self._is_computed(tensor) and differs(self.backend, tensor, value)
        ]
        if not moved:
            block.swap(self.entries, now)
            return
        for tensor, value in zip(originals, self.values, strict=True):
            if value is not None:
                arrays.assign(tensor, arrays.to_numpy(value))
        self.random.restore()
        raise _coupled(moved[0], "is a buffer that the forward changes")

    def _is_computed(self, tensor: Any) -> bool:
        """Whether it is an inner value of the forward, such as a normalized weight, that a framework has put among the buffers."""
        return (
            tensor is not None
            and self.backend.arrays.requires_gradient(tensor)
            and not self.backend.block.trainable(tensor)
        )

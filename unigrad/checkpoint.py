"""checkpoint: the same function in everything but memory."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from unigrad import random, tree
from unigrad.block import Block
from unigrad.buffers import copies, places
from unigrad.captures import reachable
from unigrad.errors import ArgumentError, ArgumentTypeError, BackendMismatchError
from unigrad.frozen import Frozen
from unigrad.meeting import Meetings
from unigrad.plugins import backend_of, backends_in_use, loaded_frameworks
from unigrad.protocols import Backend, Capability, Entry
from unigrad.region import CheckpointRegion
from unigrad.tracing import refuse_traced
from unigrad.turns import taken
from unigrad.wrapping import each_block, wrap

__all__ = ["Rerun", "adapt", "checkpoint", "common_backend", "held", "run"]

VERIFY = (True, False, "full")


class _Depth(threading.local):
    value = 0


_depth = _Depth()


class Rerun:
    """What a checkpointed native model does in place of its forward; only settings, so that it can be copied and pickled.

    Parameters
    ----------
    verify
        See :func:`checkpoint`.
    """

    what = "a checkpoint"

    def __init__(self, verify: bool | str) -> None:
        self.verify = verify

    def __call__(self, forward: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run the plain forward (a bound method of the model) as a checkpointed region."""
        model = getattr(forward, "__self__", None)
        # Some libraries replace a model's forward by a partial or a function that closes over it.
        blocks = [wrap(model)] if model is not None else list(_captured_blocks(forward, ()))
        return self.apply(forward, blocks, args, kwargs)

    def apply(
        self, function: Callable[..., Any], blocks: list[Block], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function over blocks as a checkpointed region."""
        return run(function, blocks, args, kwargs, self.verify)


def checkpoint(target: Any, *, blocks: Any = None, verify: bool | str = True) -> Any:
    """Return ``target`` with its inner activations dropped after the forward and recomputed in the backward.

    Parameters
    ----------
    target
        A block, a native model, or a function.
    blocks
        For a function: blocks or native models that it calls. Models that it captures are found by themselves; where the backend
        does not route captured parameters all must be given.
    verify
        ``True`` compares the bits of the recomputed outputs by fingerprint; ``"full"`` keeps the outputs and names the first
        differing element; ``False`` compares structure, shape and dtype only, which is unsafe: a recompute with other values then gives
        a wrong gradient in silence.

    Returns
    -------
    object
        A block for a block, a native model for a native model, a function for a function; ``enabled = False`` makes each the
        plain call.

    Raises
    ------
    ArgumentTypeError
        If ``target`` is none of these.
    UnsupportedError
        At the call, where the backend does not declare what is asked (a checkpoint inside another, captured parameters).
    RecomputeMismatchError, StaleGraphError, CapturedTensorError, CreatedParameterError
        At the call or in the backward, where the recompute would not be the forward.

    Notes
    -----
    Loss and gradients are those of the plain call, bit for bit where every tensor crosses the border once; random state and
    buffers move once, at forward time. Clauses C0 to C13.

    Examples
    --------
    >>> import numpy as np
    >>> import unigrad
    >>> from unigrad_numpy import Tensor, nn
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    >>> rerun = unigrad.checkpoint(model)
    >>> with unigrad.GradientCollector(model) as collector:
    ...     collector.backward(rerun(Tensor(np.ones((2, 3), "float32"))).sum())
    >>> sorted(collector.gradients)
    ['0.bias', '0.weight', '2.bias', '2.weight']
    """
    if verify not in VERIFY or (not isinstance(verify, bool) and verify != "full"):
        raise ArgumentError(f"verify is True, False or 'full', not {verify!r}")
    return adapt(target, Rerun(verify), blocks, "checkpoint")


def adapt(target: Any, rerun: Rerun, blocks: Any, name: str) -> Any:
    """Return ``target`` with its forward replaced by ``rerun``, as the kind of thing it is.

    Parameters
    ----------
    target
        A block, a native model, or a function.
    rerun
        What to do in place of the forward.
    blocks
        Blocks of a function.
    name
        Name of the public function, for errors.
    """
    refuse_traced(f"a {name}", recorded_only=True)
    if isinstance(target, Block):
        if target.native is None:
            raise ArgumentTypeError(f"{name} takes something that can be called; this block has no call")
        _refuse_blocks(blocks, name)
        facade = target.backend.block.facade(target.native, rerun)
        return Block(facade, target.backend, target.memory)
    if not inspect.isfunction(target) and not inspect.ismethod(target) and not isinstance(target, functools.partial):
        try:
            backend = backend_of(target)
        except ArgumentTypeError:
            backend = None
        if backend is not None and backend.block.is_model(target):
            _refuse_blocks(blocks, name)
            return backend.block.facade(target, rerun)
    if isinstance(target, type) or not callable(target):
        raise ArgumentTypeError(f"{name} takes a block, a native model or a function, not {target!r}")
    return _Function(target, rerun, list(each_block(blocks, "blocks")), blocks is None)


def _refuse_blocks(blocks: Any, name: str) -> None:
    if blocks is not None:
        raise ArgumentError(f"blocks= is for functions; {name} of a model or block has that model's parameters")


class _Function:
    """A function run as a region; ``enabled = False`` is the plain call."""

    def __init__(self, function: Callable[..., Any], rerun: Rerun, blocks: list[Block], captures: bool) -> None:
        functools.update_wrapper(self, function)
        self.enabled = True
        self._function = function
        self._rerun = rerun
        self._given = blocks
        self._captures = captures

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if not self.enabled:
            return self._function(*args, **kwargs)
        refuse_traced(self._rerun.what, recorded_only=True)
        blocks = list(self._given)
        seen = {id(block) for block in blocks}
        for block in _captured_blocks(self._function, (args, kwargs)):
            if id(block) not in seen:
                seen.add(id(block))
                blocks.append(block)
        backend = common_backend(blocks, args, kwargs)
        if self._captures:
            backend.require(Capability.CAPTURES)
        return self._rerun.apply(self._function, blocks, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{type(self._rerun).__name__.lower()} of {self._function!r}>"


def _captured_blocks(function: Any, call: Any) -> Iterator[Block]:
    """Yield blocks of the native models among the arguments and of those that a function can reach."""
    for _, found in reachable(function, _is_called, call, loaded_frameworks()):
        if _is_called(found):
            yield wrap(found)


def _is_called(obj: Any) -> bool:
    if isinstance(obj, Block):
        return obj.native is not None
    if not callable(obj) or isinstance(obj, type | functools.partial | _Function) or inspect.isroutine(obj):
        return False
    try:
        return backend_of(obj).block.is_model(obj)
    except (ArgumentTypeError, TypeError):
        return False


def common_backend(blocks: list[Block], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Backend:
    """Return the one backend of some blocks and of the tensors among the arguments.

    Parameters
    ----------
    blocks, args, kwargs
        The call.

    Raises
    ------
    BackendMismatchError
        If there are several.
    ArgumentError
        If there is none, and nothing else tells which is meant.
    """
    found: dict[str, Backend] = {block.backend.spec.name: block.backend for block in blocks}
    leaves = tree.flatten((args, kwargs))[0]
    for leaf in leaves:
        if leaf is None or isinstance(leaf, bool | int | float | str | bytes):
            continue
        try:
            backend = backend_of(leaf)
        except (ArgumentTypeError, TypeError):
            continue
        if backend.arrays.is_tensor(leaf):
            found[backend.spec.name] = backend
    if len(found) > 1:
        raise BackendMismatchError(
            f"one region has one framework; the blocks and arguments belong to {', '.join(sorted(found))}"
        )
    if not found:
        recording = [backend for backend in backends_in_use() if backend.spec.framework != "numpy"] or backends_in_use()
        if len(recording) != 1:
            raise ArgumentError(
                "neither blocks nor a tensor argument tell which framework this function uses; give blocks="
            )
        found = {"": recording[0]}
    chosen = next(iter(found.values()))
    refuse = getattr(chosen.checkpoint, "refuse_arguments", None)
    if refuse is not None:
        refuse(leaves)
    return chosen


def run(
    function: Callable[..., Any],
    blocks: list[Block],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    verify: bool | str,
    shared: dict[Any, Any] | None = None,
) -> Any:
    """Run a call as a region, or plainly where nothing is recorded.

    Parameters
    ----------
    function, args, kwargs
        The call.
    blocks
        Blocks that belong to it.
    verify
        See :func:`checkpoint`.
    shared
        See ``Region.shared``.
    """
    backend = common_backend(blocks, args, kwargs)
    if _depth.value:
        backend.require(Capability.NESTED_CHECKPOINT)
    parts = [part for block in blocks for _, part in block.parts()]
    frozen: list[Frozen | None] = []

    def alone() -> bool:
        frozen[:] = [part.frozen() for part in parts]
        return any(frozen) or any(part.writes() for part in parts) or any(block.pending for block in blocks)

    for block in blocks:
        block.structure()  # looked at anew, for what follows
    layers: frozenset[int] = frozenset().union(*(block.layers() for block in blocks))
    with taken(layers, alone) as turn:
        if not backend.tape.is_recording():
            with held(frozen):
                return function(*args, **kwargs)
        if any(block.pending for block in blocks):
            _build(backend, function, blocks, args, kwargs)
            alone()  # what the built layers hold
        meetings: list[Meetings] = []
        entered = _entered(function, tuple(frozen), meetings)
        region = CheckpointRegion(backend, entered, args, kwargs, blocks, verify, shared)

        def meet(block: Block) -> None:
            turn.extend(block.layers())
            region.meet(block)

        meetings.append(Meetings(backend, blocks, meet))
        return backend.checkpoint.run(region)


def _entered(
    function: Callable[..., Any], frozen: Sequence[Frozen | None], meetings: list[Meetings]
) -> Callable[..., Any]:
    """Return the function of a region as its forward and its recompute call it."""

    def entered(*args: Any, **kwargs: Any) -> Any:
        # Only the forward meets models; kept, they and the region, which holds the arguments, would hold each other.
        watched = meetings.pop().watched() if meetings else nullcontext()
        _depth.value += 1
        try:
            with held(frozen), watched:
                return function(*args, **kwargs)
        finally:
            _depth.value -= 1

    entered.__wrapped__ = function  # type: ignore[attr-defined]  # lets a backend look at the closure of the user's function
    return entered


@contextmanager
def held(frozen: Iterable[Frozen | None]) -> Iterator[None]:
    """Hold what is frozen in several blocks; see :meth:`unigrad.frozen.Frozen.held`."""
    with ExitStack() as stack:
        for one in frozen:
            if one is not None:
                stack.enter_context(one.held())
        yield


def _build(
    backend: Backend,
    function: Callable[..., Any],
    blocks: list[Block],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> None:
    """Create the parameters of pending layers by one unrecorded call that leaves nothing else behind."""
    primitive = backend.block
    entries = places(blocks)
    known = {(id(entry.owner), entry.key) for entry in entries}
    generators = [item for block in blocks for item in block.structure().generators.values()]
    state = random.snapshot(backend, generators)
    fresh: list[tuple[Entry, Any]] = []

    def built() -> None:
        nonlocal state
        state = random.snapshot(backend, generators)
        for block in blocks:
            for entry in block.structure().buffers:
                if entry.tensor is not None and (id(entry.owner), entry.key) not in known:
                    known.add((id(entry.owner), entry.key))
                    fresh.append((entry, backend.arrays.clone(entry.tensor)))

    undo = [primitive.on_built(block.inner, built) for block in blocks if block.inner is not None]
    live = primitive.swap(entries, copies(backend, [entry.tensor for entry in entries]))
    try:
        with backend.tape.no_record():
            function(*args, **kwargs)
    finally:
        for callback in undo:
            callback()
        primitive.swap(entries, live)
        primitive.swap([entry for entry, _ in fresh], [tensor for _, tensor in fresh])
        state.restore()

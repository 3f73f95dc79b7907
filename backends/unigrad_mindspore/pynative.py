"""The only module that touches the private parts of MindSpore's PyNative engine; tested on a small sum when it is loaded.

MindSpore has no public way to differentiate a recorded graph (see ``docs/refusals.md``). What is used here exists in 2.10; for a
version in which a part is missing or behaves otherwise, the import says which.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mindspore
from mindspore import Parameter, Tensor

from unigrad.errors import BackendBrokenError

__all__ = [
    "PLAIN_NODE",
    "TWICE",
    "amp_strategy",
    "at_end_of_backward",
    "cells_watched",
    "grad_flag",
    "holders",
    "kernel_seeds",
    "make_cell",
    "mode_depth",
    "node_id",
    "pop_mode",
    "pop_precision",
    "precisions",
    "push_mode",
    "push_precision",
    "raise_pending",
    "recorded",
    "recording",
    "recording_allowed",
    "repair_precisions",
    "run_backward",
    "set_flags",
    "set_kernel_seeds",
    "unrecorded",
]

TWICE = "backward the graph twice"
"""Part of the engine's error for a graph that it has released."""


def _find(what: str, look: Callable[[], Any]) -> Any:
    try:
        return look()
    except (ImportError, AttributeError, KeyError) as cause:
        raise BackendBrokenError(
            f"mindspore {mindspore.__version__} has no {what}, which the backend needs to differentiate a recorded graph; it "
            "was made for mindspore 2.10"
        ) from cause


_expression = _find("mindspore._c_expression", lambda: __import__("mindspore._c_expression", fromlist=["_"]))
_executor = _find("graph.api._pynative_executor", lambda: sys.modules["mindspore.graph.api"]._pynative_executor)
_engine = _find("_c_expression.run_backward", lambda: _expression.run_backward)
_stack = _find("_c_expression._DispatchGuardStack", lambda: _expression._DispatchGuardStack)
PLAIN_NODE: type = _find("_c_expression.BackwardNodePy", lambda: _expression.BackwardNodePy)
"""Kind of a node of MindSpore's own operations; that of a ``_Function`` is its context."""
_Cell = _find("_c_expression.Cell_", lambda: _expression.Cell_)
_precision_kinds = _find("_c_expression.MixedPrecisionType", lambda: _expression.MixedPrecisionType)
amp_strategy: Callable[[], Any] = _find("_c_expression.amp", lambda: _expression.amp.get_curr_amp_strategy)
"""The strategy of a network of ``auto_mixed_precision`` of level "auto" that runs in this thread now, else None."""
_seeds = _find("common.seed", lambda: sys.modules["mindspore.common.seed"])
for _name in ("_KERNEL_SEED", "_GLOBAL_SEED"):
    _find(f"common.seed.{_name}", lambda: getattr(_seeds, _name))  # noqa: B023  # called at once
for _name in (
    "grad_flag",
    "enable_grad",
    "set_grad_flag",
    "set_enable_grad",
    "sync",
    "queue_backward_final_callback",
    "set_mixed_precision_type",
):
    _find(f"graph.api._pynative_executor.{_name}", lambda: getattr(_executor, _name))  # noqa: B023  # called at once
for _name in ("_grad_node", "_requires_grad", "_is_leaf", "_grad", "_version"):
    _find(f"Tensor.{_name}", lambda: getattr(Tensor, _name))  # noqa: B023  # called at once
_find("saved_tensors_hooks", lambda: mindspore.saved_tensors_hooks)
_find("MsDispatchMode", lambda: mindspore.MsDispatchMode)

grad_flag: Callable[[], bool] = _executor.grad_flag
"""Whether the engine is switched on in this thread; a nested native gradient call switches it off."""
recording_allowed: Callable[[], bool] = _executor.enable_grad
"""Whether no ``_no_grad`` is open in this thread."""


def recording() -> bool:
    """Whether operations on tensors that require a gradient are recorded in this thread now."""
    return bool(grad_flag() and recording_allowed())


def set_flags(on: bool, allowed: bool) -> None:
    """Set both recording flags of this thread."""
    _executor.set_grad_flag(on)
    _executor.set_enable_grad(allowed)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Run with recording off in this thread."""
    before = recording_allowed()
    set_flags(grad_flag(), False)
    try:
        yield
    finally:
        set_flags(grad_flag(), before)


@contextmanager
def recorded() -> Iterator[None]:
    """Run with recording on in this thread."""
    before = grad_flag(), recording_allowed()
    set_flags(True, True)
    try:
        yield
    finally:
        set_flags(*before)


def raise_pending() -> None:
    """Wait for all operations; raise the error of one that failed, which MindSpore else raises at some later operation."""
    on, allowed = grad_flag(), recording_allowed()
    try:
        _executor.sync()
    except BaseException:
        set_flags(on, allowed)  # the error has switched recording off
        raise


def node_id(tensor: Any) -> int | None:
    """Return the number of the tensor's node, unique among living ones; None if it has none."""
    node = tensor._grad_node
    return None if node is None else node._unique_id()


def run_backward(
    losses: Sequence[Any], cotangents: Sequence[Any], targets: Sequence[Any], *, retain: bool, create: bool
) -> tuple[Any, ...]:
    """Run the engine for the targets alone; the recording flags are afterwards as they were."""
    on, allowed = grad_flag(), recording_allowed()
    try:
        found = _engine(tuple(losses), tuple(cotangents), retain, create, tuple(targets), True, accumulate_grad=False)
        raise_pending()
    finally:
        set_flags(on, allowed)
    return tuple(found)


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call back when the backward that runs in this thread has ended."""
    _executor.queue_backward_final_callback(callback)


def mode_depth() -> int:
    """Return how many dispatch modes are open in this thread."""
    return int(_stack.depth())


def push_mode(mode: Any) -> None:
    """Open a dispatch mode."""
    _surely(lambda: _stack.push(mode))


def pop_mode() -> None:
    """Close the dispatch mode that was opened last."""
    _surely(_stack.pop)


def _surely(change: Callable[[], None]) -> None:
    """Change the stack of modes, also where MindSpore raises the error of an earlier operation in place of doing so."""
    before = _stack.depth()
    try:
        change()
    except BaseException:
        if _stack.depth() == before:
            change()
        raise


_precisions: list[Any] = []
_plain_set_precision = _executor.set_mixed_precision_type


def _set_precision(kind: Any, is_push: bool = True) -> None:
    _plain_set_precision(kind, is_push)
    if is_push:
        _precisions.append(kind)
    elif _precisions:
        _precisions.pop()


_executor.set_mixed_precision_type = _set_precision  # MindSpore does not tell what is set; its Cells call this


def precisions() -> Sequence[Any]:
    """Return the mixed precisions that Cells have set and not undone, the last one being in force; they are of the process."""
    return _precisions


def push_precision(kind: Any | None) -> None:
    """Set a mixed precision; None sets that none is in force."""
    _set_precision(_precision_kinds.NOTSET if kind is None else kind)


def pop_precision() -> None:
    """Undo ``push_precision``."""
    _set_precision(_precision_kinds.NOTSET, False)


def repair_precisions(depth: int) -> None:
    """Undo the mixed precisions above ``depth``; set those below anew if MindSpore has forgotten them."""
    if not _precisions:
        return
    below = _precisions[:depth]
    if _in_force() != _precisions[-1]:
        _precisions.clear()  # to undo one that is forgotten is a write outside of MindSpore's memory
    while len(_precisions) > len(below):
        pop_precision()
    for kind in below[len(_precisions) :]:
        push_precision(kind)


def _in_force() -> Any:
    kinds = _precision_kinds
    known = {mindspore.float16: kinds.FP16, mindspore.bfloat16: kinds.BF16}
    with unrecorded():
        kind = known.get(mindspore.ops.neg(Tensor(1.0, mindspore.float32)).dtype, kinds.NOTSET)
        narrow = mindspore.ops.neg(Tensor(1.0, mindspore.float16)).dtype
    return kinds.FP32 if narrow == mindspore.float32 else kind


@atexit.register
def _close_modes() -> None:
    while _stack.depth():  # one that is open when the interpreter ends, as in a suspended generator, aborts the process
        pop_mode()


def kernel_seeds() -> tuple[Any, dict[Any, int]]:
    """Return the state of MindSpore's functional random operations."""
    return _seeds._GLOBAL_SEED, dict(_seeds._KERNEL_SEED)


def set_kernel_seeds(state: tuple[Any, dict[Any, int]]) -> None:
    """Set the state of MindSpore's functional random operations."""
    _seeds._GLOBAL_SEED = state[0]
    _seeds._KERNEL_SEED.clear()
    _seeds._KERNEL_SEED.update(state[1])


def make_cell(kind: type) -> Any:
    """Return an instance of a kind of Cell that has nothing but its native part."""
    made = kind.__new__(kind)
    _Cell.__init__(made, kind.__name__)
    return made


def holders(address: Any) -> int:
    """Return how many tensors, views and graph nodes share the memory of which ``asnumpy().base`` is the address.

    The Python object of the address is one more, and is not counted.
    """
    # an instance of pybind11: object header, value, then the shared pointer: value, control block with the count at 8
    block = (ctypes.c_uint64 * 5).from_address(id(address))[4]
    return ctypes.c_int32.from_address(block + 8).value - 1


_watchers: list[Callable[[Any], None]] = []
_plain_call = mindspore.nn.Cell.__call__


def _watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    for watcher in tuple(_watchers):
        watcher(self)
    return _plain_call(self, *args, **kwargs)


@contextmanager
def cells_watched(callback: Callable[[Any], None]) -> Iterator[None]:
    """Call ``callback(cell)`` before each Cell that any thread calls: MindSpore has no hook on all Cells."""
    _watchers.append(callback)
    mindspore.nn.Cell.__call__ = _watched_call
    try:
        yield
    finally:
        _watchers.remove(callback)
        if not _watchers:
            mindspore.nn.Cell.__call__ = _plain_call


def self_test() -> None:
    """Differentiate a small sum; ``BackendBrokenError`` for each thing that does not come out as the backend relies on."""
    on, allowed = grad_flag(), recording_allowed()
    try:
        _check(_observe())
    except SystemError as cause:
        raise BackendBrokenError(
            f"mindspore {mindspore.__version__} was built for numpy 1, and its first operation fails with numpy 2 or newer. Install "
            "an older one with: pip install 'numpy<2'"
        ) from cause
    finally:
        set_flags(on, allowed)


def _observe() -> dict[str, tuple[Any, Any]]:
    import numpy as np

    used, other = (Parameter(Tensor(np.array([1, 2], np.float32)), name=name) for name in ("used", "other"))
    packed: list[Any] = []

    def pack(tensor: Any) -> int:
        packed.append(tensor)
        return len(packed) - 1

    def unpack(index: int) -> Any:
        return packed[index]

    set_flags(True, True)
    with mindspore.saved_tensors_hooks(pack, unpack):
        loss = (used * used * used).sum()
    node = loss._grad_node
    released: list[str] = []
    node.register_hook(lambda *values: released.append("called"))
    first = run_backward((loss,), (), (used, other), retain=True, create=False)
    run_backward((loss,), (), (used,), retain=False, create=False)
    try:
        run_backward((loss,), (), (used,), retain=False, create=False)
        text = "no error"
    except RuntimeError as error:
        text = str(error)
    below = len([one for one, _ in node.next_functions if one is not None])
    for index in range(len(node.next_functions)):
        node._set_next_edge(index, None)
    cut = len([one for one, _ in node.next_functions if one is not None])
    inside = used * 2.0
    address = inside.asnumpy().base
    alive = holders(address)
    del inside
    return {
        "gradient": (first[0].asnumpy().tolist(), [3.0, 12.0]),
        "gradient of what a loss does not reach": (first[1], None),
        "use of saved_tensors_hooks": (len(packed) > 0, True),
        "hooks on a node": (len(released) > 0, True),
        "error of a second backward": (TWICE in text, True),
        "nodes below one, before and after it was cut from them": ((below, cut), (1, 0)),
        "leaf below the graph": (node_id(used) is not None and used._grad_node.is_leaf(), True),
        "count of the holders of a tensor's memory": ((alive, holders(address)), (1, 0)),
    }


def _check(observed: dict[str, tuple[Any, Any]]) -> None:
    wrong = [
        f"{what}: {found!r} instead of {wanted!r}" for what, (found, wanted) in observed.items() if found != wanted
    ]
    if wrong:
        raise BackendBrokenError(
            f"the private engine of mindspore {mindspore.__version__} behaves otherwise than that of 2.10, which the backend "
            f"was made for: {'; '.join(wrong)}"
        )


self_test()

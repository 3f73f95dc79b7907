"""What depends on what: a record beside TensorFlow's tape, which can't be asked.

An operation callback hangs a node on each tensor that depends on a leaf. Nodes refer to nodes below them and to leaves, never to
a tensor, so they keep no activation alive. The gradients themselves come from TensorFlow's tape.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from unigrad_tensorflow.private import (
    add_callback,
    any_tape,
    differentiable,
    outermost,
    owner,
    raw,
    remove_callback,
    stopped,
    tell_no_more,
    tell_of_records,
    variable_of,
    watch_graph,
    watcher_new,
    watcher_remove,
    watcher_variables,
)

__all__ = [
    "Epoch",
    "Leaf",
    "Node",
    "Recorder",
    "Twin",
    "attach",
    "current",
    "hidden",
    "is_cut",
    "node_of",
    "register",
    "register_random",
]

ZERO_EVERYWHERE = frozenset({"Ceil", "Floor", "Rint", "Round"})
"""Operations whose gradient function returns nothing."""

_counter = itertools.count(1)
_cut: dict[str, bool] = {}


class Epoch:
    """The time of one tape; it ends as a whole.

    Parameters
    ----------
    tape
        The tape; None once it has ended.
    around
        The epoch in which this one ends, if it is that of a region: what the region recorded is then one operation of that epoch.
    """

    __slots__ = ("around", "released", "tape")

    def __init__(self, tape: Any, around: Epoch | None = None) -> None:
        self.tape = tape
        self.around = around
        self.released = False

    def now(self) -> Epoch:
        """Return the epoch to which what was recorded in this one belongs now."""
        epoch = self
        while epoch.tape is None and epoch.around is not None and not epoch.released:
            epoch = epoch.around
        return epoch


class Node:
    """One recorded operation.

    Parameters
    ----------
    below
        What it depends on: nodes, leaves and twins.
    epoch
        The time of the tape that recorded it.
    name
        Type of the operation.
    """

    __slots__ = ("__weakref__", "below", "epoch", "name", "serial")

    def __init__(self, below: tuple[Any, ...], epoch: Epoch | None, name: str) -> None:
        self.below = below
        self.epoch = epoch
        self.name = name
        self.serial = next(_counter)


class Leaf:
    """A variable, as the record sees it; it hangs on the variable's handle.

    Attributes
    ----------
    passed_over
        Whether it was used while it took no gradients.
    """

    __slots__ = ("_native", "_variable", "passed_over")

    def __init__(self, variable: Any, native: Any) -> None:
        self.passed_over = False
        self._variable = weakref.ref(variable)
        self._native = None if native is variable else weakref.ref(native)

    @property
    def variable(self) -> Any:
        """The ``tf.Variable``."""
        return self._variable()

    @property
    def native(self) -> Any:
        """What the model holds: a variable of Keras or a ``tf.Variable``."""
        if self._native is not None:
            found = self._native()
            if found is not None:
                return found
        return self._variable()

    def name(self, native: Any) -> None:
        """Take note of the variable of Keras to which this one belongs."""
        self._native = weakref.ref(native)

    def handles(self, handle: Any) -> bool:
        """Whether this is the variable of a handle."""
        variable = self._variable()
        return variable is not None and variable.handle is handle

    def trainable(self) -> bool:
        """Whether the variable takes gradients now; what Keras says counts."""
        native = self.native
        return native is not None and bool(native.trainable) and raw(native).dtype.is_floating


class Twin:
    """A watched tensor that has no graph of its own."""

    __slots__ = ("__weakref__", "_tensor", "serial")

    def __init__(self, tensor: Any) -> None:
        self._tensor = weakref.ref(tensor)
        self.serial = next(_counter)

    @property
    def native(self) -> Any:
        """The tensor."""
        return self._tensor()


class _State(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder | None] = []
        self.tapes: list[Any] = []


_state = _State()


def current() -> Recorder | None:
    """Return the recorder that is told of operations in this thread now; None also where nobody is to be told."""
    return _state.recorders[-1] if _state.recorders else None


def node_of(tensor: Any) -> Any:
    """Return what hangs on a tensor: a node, a twin, or None."""
    return getattr(tensor, "_unigrad", None)


def attach(tensor: Any, node: Any) -> None:
    """Hang a node on a tensor."""
    tensor._unigrad = node


def register(native: Any) -> Leaf:
    """Let the record know a variable by the object that a model holds."""
    variable = raw(native)
    handle = variable.handle
    leaf = getattr(handle, "_unigrad", None)
    if leaf is None or leaf.variable is not variable:
        leaf = handle._unigrad = Leaf(variable, native)
    elif native is not variable and leaf.native is not native:
        leaf.name(native)
    return leaf


def register_random(state: Any) -> None:
    """Let the record know the state of a generator that regions replay."""
    register(state)
    raw(state).handle._unigrad_random = True


def is_cut(operation: str) -> bool:
    """Whether nothing behind this operation gets a gradient."""
    known = _cut.get(operation)
    if known is None:
        known = operation in ZERO_EVERYWHERE or (not operation.startswith("__") and not differentiable(operation))
        _cut[operation] = known
    return known


class Recorder:
    """Is told of every operation of its thread, while it is the innermost one.

    TensorFlow's fast path reads the variables among the inputs of an operation without telling of it. A watcher that is new after each
    reading that was told knows which these are.

    Parameters
    ----------
    epoch
        The epoch to which new nodes belong; None for a region outside of every collector.
    within
        Whether this is a region that runs while recording is stopped for its own sake.
    """

    def __init__(self, epoch: Epoch | None, within: bool = False) -> None:
        self.epoch = epoch
        self.within = within
        self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self.used: dict[int, Leaf] = {}
        self.above: Recorder | None = None
        self.local: dict[int, Any] = {}
        self.entering: Callable[[str, Any, Any], None] | None = None
        self.foreign: Callable[[Any], bool] | None = None
        self.every: Callable[[str, Any], None] | None = None
        self._watcher: Any = None
        self._undo: Callable[[], None] | None = None

    def stand_in(self, region: Recorder) -> None:
        """Look, beside its own work, for what the recorder of a region looks for: this one is told of what runs inside."""
        self.above = region
        self.entering, self.foreign, self.every = region.entering, region.foreign, region.every

    def renew(self) -> None:
        """Forget which variables were accessed."""
        if self._watcher is not None:
            watcher_remove(self._watcher)
        self._watcher = watcher_new()

    def _use_all(self, inputs: Any) -> None:
        nodes = [getattr(tensor, "_unigrad", None) for tensor in inputs]
        read = [node.below[0] for node in nodes if type(node) is Node and node.name == READ]
        for leaf in read + self._accessed():
            if leaf.trainable():
                self.use(leaf)

    def use(self, leaf: Leaf) -> None:
        """Take note of the use of a leaf."""
        self.used[id(leaf)] = leaf
        if self.above is not None:
            self.above.use(leaf)

    def _accessed(self) -> list[Leaf]:
        return [leaf_of(variable) for variable in watcher_variables(self._watcher)]

    def note(
        self, operation: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        """Take note of one operation."""
        if type(operation) is bytes:
            operation = operation.decode()
        # In a trace the body of a loop is traced too, and its call is told of without its operations.
        if self.every is not None and (graph is self.graph or self.graph is not None):
            self.every(operation, inputs)
        if graph is None and self.graph is None and outputs:
            self._note(operation, inputs, outputs)

    def _put(self, operation: Any) -> None:
        """Take note of an operation that has been put into the graph."""
        if current() is self:
            self._note(operation.type, operation.inputs, operation.outputs)

    def _note(self, operation: str, inputs: Any, outputs: Any) -> None:
        # TensorFlow stops recording for the call of a traced function too, whose form for a tape has a name of its own.
        if stopped() and not self.within and not operation.startswith("__forward_"):
            if operation == "StopGradient":  # which TensorFlow runs while recording is stopped
                self._use_all(inputs)
            self.renew()  # what else was accessed until now is no use
            return
        below, unseen, stale = self._below(operation, inputs)
        if unseen and not stale and self.graph is None:
            found = self._accessed()
            stale = bool(found)
            for leaf in found:
                if leaf.trainable():
                    below.append(leaf)
                else:
                    leaf.passed_over = True
        if stale:
            self.renew()
        if below:
            if operation != READ:
                self._use(below)
            if not is_cut(operation):
                self._make(operation, outputs, below)

    def record(self, operation: str, outputs: Any, inputs: Any) -> None:
        """Take note of an operation that was recorded by hand: its result need not come from operations that have a gradient."""
        if self.every is not None:
            self.every(operation, inputs)
        if operation == CAPTURE:  # a placeholder stands for what was captured
            for tensor, captured in zip(outputs, inputs, strict=True):
                if node_of(captured) is not None:
                    attach(tensor, node_of(captured))
                elif self.foreign is not None and captured.dtype.is_floating and self.foreign(captured):
                    assert self.entering is not None
                    self.entering(operation, captured, None)
        elif outputs and not (stopped() and not self.within):
            below, _, _ = self._below(operation, inputs)
            if below and operation != READ:
                self._use(below)
                before = [node for node in map(node_of, outputs) if type(node) is Node]
                self._make(operation, outputs, [*below, *before])

    def _below(self, operation: str, inputs: Any) -> tuple[list[Any], bool, bool]:
        """Return nodes and leaves among the inputs, whether there is a tensor without, and whether there is a variable."""
        local = self.local
        below: list[Any] = []
        unseen = stale = False
        for tensor in inputs:
            node = getattr(tensor, "_unigrad", None)
            if node is None:
                if local:
                    node = local.get(id(tensor))
                if node is None:
                    if tensor.dtype != tf.resource:
                        unseen = True
                        if self.foreign is not None and tensor.dtype.is_floating and self.foreign(tensor):
                            assert self.entering is not None  # a region has both
                            self.entering(operation, tensor, None)
                        continue
                    if operation in WITHOUT_VALUE:
                        continue
                    node = self._leaf(tensor, operation)
                    if node is None:
                        continue
            kind = type(node)
            if kind is Leaf:
                stale = True
                if node.trainable():
                    below.append(node)
                else:
                    node.passed_over = True
                continue
            if kind is Node and node.name == READ:
                self.use(node.below[0])
            if self.entering is not None:
                self.entering(operation, tensor, node)
            below.append(node)
        return below, unseen, stale

    def _use(self, below: list[Any]) -> None:
        for node in below:
            if type(node) is Leaf:
                self.use(node)

    def _leaf(self, tensor: Any, operation: str) -> Leaf | None:
        """Return the variable of a handle that is not known yet."""
        handle = outermost(tensor)
        if handle is not tensor:
            known = node_of(handle)
            if type(known) is Leaf:
                attach(tensor, known)
                return known
        found = next((leaf for leaf in self._accessed() if leaf.handles(handle)), None)
        if found is None and self.every is not None and operation.startswith("__"):
            # A function traced before tells of its variables only to tapes, which a region hides.
            variable = variable_of(handle)
            found = None if variable is None else leaf_of(variable)
        return found

    def _make(self, operation: str, outputs: Any, below: list[Any]) -> None:
        made = None
        for tensor in outputs:
            if tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype == tf.variant:  # a list of tensors
                if made is None:
                    made = Node(tuple(below), self.epoch, operation)
                tensor._unigrad = made

    def __enter__(self) -> Recorder:
        above = current()
        if above is not None:
            remove_callback(above.note)
        self.renew()
        _state.recorders.append(self)
        add_callback(self.note)
        tell_of_records(_recorded)
        if self.graph is not None:
            self._undo = watch_graph(self.graph, self._put)
        return self

    def __exit__(self, *details: object) -> None:
        tell_no_more()
        if self._undo is not None:
            self._undo()
        innermost = _state.recorders[-1] is self
        _state.recorders.remove(self)
        if self._watcher is not None:
            watcher_remove(self._watcher)
            self._watcher = None
        if innermost:
            remove_callback(self.note)
            below = current()
            if below is not None:
                below.renew()
                add_callback(below.note)


def leaf_of(variable: Any) -> Leaf:
    """Return the leaf of a variable, whether or not a structure knows it."""
    leaf = getattr(variable.handle, "_unigrad", None)
    return leaf if leaf is not None and leaf.variable is variable else register(owner(variable))


def _recorded(operation: str, outputs: Any, inputs: Any) -> None:
    recorder = current()
    if recorder is not None:
        recorder.record(operation, outputs, inputs)


READ = "ReadVariableOp"
CAPTURE = "captured_value"
WITHOUT_VALUE = frozenset(
    {"VarIsInitializedOp", "VariableShape", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
)


@contextmanager
def silent() -> Iterator[None]:
    """Run without telling any recorder."""
    recorder = current()
    if recorder is not None:
        remove_callback(recorder.note)
    _state.recorders.append(None)
    try:
        yield
    finally:
        _state.recorders.pop()
        if recorder is not None:
            recorder.renew()
            add_callback(recorder.note)


@contextmanager
def opened(tape: Any) -> Iterator[Any]:
    """Record on a tape of ours, so that :func:`hidden` knows it."""
    with tape:
        _state.tapes.append(tape)
        try:
            yield tape
        finally:
            _state.tapes.remove(tape)


def tapes() -> list[Any]:
    """Return the tapes of ours that were opened in this thread."""
    return _state.tapes


@contextmanager
def hidden() -> Iterator[bool]:
    """Run without any tape of ours; gives whether tapes of others still record.

    A thread-wide stop would do this too, but then neither a tape that the user opens inside nor a stop of the user's could be told
    apart.
    """
    paused = [tape for tape in _state.tapes if tape._recording]
    for tape in reversed(paused):
        tape._pop_tape()
    try:
        yield any_tape()
    finally:
        for tape in paused:
            tape._push_tape()

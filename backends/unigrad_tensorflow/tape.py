"""Record, which parameters a loss reaches, vector-Jacobian product, release. See ``unigrad.protocols.TapeModule``.

A region has one persistent ``GradientTape`` at a time. TensorFlow can release a tape only as a whole, so a releasing backward ends
the tape with all that it recorded, and a new one begins.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from unigrad.errors import GraphReleasedError, NoGraphError, UnsupportedError
from unigrad.protocols import Structure
from unigrad.recompute import in_recompute
from unigrad_tensorflow import graph as recorded
from unigrad_tensorflow.added import losses
from unigrad_tensorflow.graph import Epoch, Leaf, Node, Recorder, Twin, attach, current, hidden, node_of, silent
from unigrad_tensorflow.private import any_tape, differentiated, identity, raw, stop_recording, stopped, unstopped
from unigrad_tensorflow.recompute import collects_inside, in_forward, watched_inside


class _Open(threading.local):
    region: Region | None = None


_open = _Open()


class Region:
    """What is recorded in one thread: the present tape, and the leaves used.

    A checkpointed region that runs inside has a tape for itself, for a gradient that its function takes; it goes when the function
    returns.
    """

    def __init__(self) -> None:
        self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._twins: list[weakref.ref[Any]] = []
        self._extra: dict[int, Any] = {}
        self._used: dict[int, Any] = {}
        self._borrowed = False  # whether the present tape is one of a recompute
        self.epoch = self._begin(None)
        self._recorder = Recorder(self.epoch)
        self._recorder.used = self._used
        around = current()
        if around is not None and in_forward() is not None:
            self._recorder.stand_in(around)
        self._recorder.__enter__()

    def _begin(self, around: Epoch | None) -> Epoch:
        tape = tf.GradientTape(persistent=True)
        tape.__enter__()
        recorded.tapes().append(tape)
        for variable in self._extra.values():
            tape.watch(variable)
        self._twins = [twin for twin in self._twins if twin() is not None]
        for twin in self._twins:
            tape.watch(twin())
        return Epoch(tape, around)

    @staticmethod
    def _end(epoch: Epoch) -> None:
        tape, epoch.tape = epoch.tape, None
        recorded.tapes().remove(tape)
        if tape._recording:
            tape.__exit__(None, None, None)

    def renew(self) -> None:
        """End the present tape and begin another."""
        ended, around = self.epoch, self.epoch.around
        if self._borrowed:  # a recompute still needs it
            tape, ended.tape = ended.tape, None
            self.epoch = Epoch(tape, around)
        else:
            self._end(ended)
            self.epoch = self._begin(around)
        recorder = current()
        for one in (recorder, self._recorder):
            if one is not None and one.epoch is ended:
                one.epoch = self.epoch

    def keep_watching(self, twin: Any) -> None:
        """Watch a tensor, on later tapes too."""
        self.epoch.tape.watch(twin)
        self._twins.append(weakref.ref(twin))

    def expect(self, leaves: Sequence[Any], others: bool) -> None:
        """Watch the leaves that Keras says are trainable and TensorFlow not; every use is noted."""
        if in_forward() is not None:
            collects_inside()
        for leaf in leaves:
            recorded.register(leaf)
            if leaf.trainable and not raw(leaf).trainable and id(leaf) not in self._extra:
                self._extra[id(leaf)] = raw(leaf)
                self.epoch.tape.watch(raw(leaf))

    def used(self) -> list[Any]:
        """Return the leaves used since the last call."""
        found = [native for native in (leaf.native for leaf in self._used.values()) if native is not None]
        self._used.clear()
        return found

    @contextmanager
    def inner(self) -> Iterator[Epoch]:
        """Record what runs inside on a tape of its own."""
        around, borrowed = self.epoch, self._borrowed
        self.epoch, self._borrowed = self._begin(around), False
        try:
            yield self.epoch
        finally:
            self._end(self.epoch)
            self.epoch, self._borrowed = around, borrowed

    @contextmanager
    def again(self, tape: Any) -> Iterator[None]:
        """Record, beside a tape of a recompute, what a collector inside of it asks for."""
        around, borrowed = self.epoch, self._borrowed
        self.epoch, self._borrowed = Epoch(tape, around), True
        recorder = Recorder(self.epoch)
        recorder.used = self._used
        try:
            with recorder:
                yield
        finally:
            self.epoch.tape, self.epoch, self._borrowed = None, around, borrowed

    def close(self) -> None:
        """Stop."""
        self._recorder.__exit__(None, None, None)
        self._end(self.epoch)


def open_now() -> Region | None:
    """Return the region of this thread."""
    return _open.region


class Graph:
    """What some losses depend on."""

    def __init__(self, losses: Sequence[Any]) -> None:
        self.losses = losses
        self.released: str | None = None
        self.epochs: list[Epoch] = []
        self._leaves: list[Any] = []
        self._walk([node_of(raw(loss).handle) if _is_variable(loss) else node_of(loss) for loss in losses])

    def _walk(self, stack: list[Any]) -> None:
        seen = {id(node) for node in stack}
        epochs: dict[int, Epoch] = {}
        while stack:
            node = stack.pop()
            if type(node) is not Node:
                if node is not None:
                    self._leaves.append(node)
                continue
            epoch = None if node.epoch is None else node.epoch.now()
            if epoch is not None:
                epochs[id(epoch)] = epoch
                if epoch.released:
                    self.released = self.released or node.name
                    continue
            for below in node.below:
                if id(below) not in seen:
                    seen.add(id(below))
                    stack.append(below)
        self.epochs = list(epochs.values())

    @property
    def leaves(self) -> list[Any]:
        """Leaves, each once: what the model holds; a watched tensor itself."""
        return [native for native in (leaf.native for leaf in self._leaves) if native is not None]


def _is_variable(obj: Any) -> bool:
    return isinstance(obj, keras.Variable | tf.Variable)


def engine(model: Any, structure: Structure) -> str:
    """Return ``"pure"``, the only one."""
    return "pure"


def open_region() -> Region:
    """Begin a tape and the record beside it, for this thread."""
    region = Region()
    _open.region = region
    return region


def close_region(region: Any) -> None:
    """Undo ``open_region``."""
    _open.region = None
    region.close()


def is_recording() -> bool:
    """Whether operations on trainable tensors are recorded in this thread now.

    The operations of a ``tf.function`` are there to be differentiated from outside, whether or not a tape is open while it is traced.
    """
    forward = in_forward()
    if forward is not None:
        return forward or not stopped()
    if stopped():
        return False
    return not tf.executing_eagerly() or any_tape()


@contextmanager
def no_record() -> Iterator[None]:
    """Run without recording in this thread; what layers add as losses meanwhile belongs to no call of the user's and is dropped."""
    with stop_recording(), losses(again=True):
        yield


def trace(losses: Sequence[Any]) -> Graph:
    """Walk the record below the losses; changes nothing."""
    region = _open.region
    for loss in losses:
        graph = getattr(loss, "graph", None) if not _is_variable(loss) and tf.is_symbolic_tensor(loss) else None
        if region is not None and graph is not region.graph and not _is_variable(loss):
            raise UnsupportedError(
                "this collector was opened outside of the tf.function that is being traced, or the loss belongs to another; open the "
                "collector, run forward and backward, and read the gradients inside of one tf.function"
            )
    found = Graph(losses)
    if found.released is not None:
        return found
    for loss in losses:
        if _is_variable(loss):
            if not recorded.register(loss).trainable():
                raise NoGraphError("this loss is a variable that takes no gradient")
            continue
        node = node_of(loss)
        if node is None or not (loss.dtype.is_floating or loss.dtype.is_complex):
            raise NoGraphError(
                "nothing was recorded that leads to this loss: it is a constant, or was detached (tf.stop_gradient, an integer), or "
                "depends on frozen parameters only, or was computed outside of the collector's 'with', in another thread, or "
                "where recording was off; run the forward again inside"
            )
    if any(epoch.tape is None for epoch in found.epochs):
        raise NoGraphError(
            "this loss was recorded in a collector that has been left since; TensorFlow's tape ends with it. Run the forward again "
            "inside of this one"
        )
    if len(found.epochs) > 1:
        raise UnsupportedError(
            "a gradient taken inside a checkpointed region ends at the border of the region, and this loss depends on an argument that has "
            "a graph of its own; take it outside, or tf.stop_gradient() the argument"
        )
    return found


def vjp(
    graph: Graph, cotangents: Sequence[Any | None], targets: Sequence[Any], *, retain: bool, create: bool
) -> list[Any | None]:
    """Return the vector-Jacobian product for each target, None where not reached; sparse ones are made dense."""
    region = _open.region
    if graph.released is not None or region is None:
        raise GraphReleasedError(f"this graph was released by an earlier backward, at the operation {graph.released}")
    tape = graph.epochs[0].tape if graph.epochs else region.epoch.tape
    # A layer that is frozen is frozen too where it was built in this forward.
    asked = [target for target in targets if not _is_variable(target) or recorded.register(target).trainable()]
    sources = [raw(target) for target in asked]
    losses = [identity_of(loss, tape) for loss in graph.losses]
    given = None
    if any(cotangent is not None for cotangent in cotangents):
        given = [
            tf.ones_like(loss) if cotangent is None else cotangent
            for loss, cotangent in zip(losses, cotangents, strict=True)
        ]
    with ExitStack() as stack:
        stack.enter_context(unstopped())
        if not create:
            stack.enter_context(silent())
            stack.enter_context(hidden())
        missed = _missed(graph, tape)
        found = differentiated(tape, losses, sources + missed, given) if sources or missed else []
        lost = [
            variable.name for variable, value in zip(missed, found[len(sources) :], strict=False) if value is not None
        ]
        if lost:
            raise UnsupportedError(
                f"TensorFlow's tape reaches variables that the record beside it has not seen ({', '.join(lost)}): some operation was "
                "recorded in a way that this backend does not know, and gradients would be missing. Use tf.GradientTape here"
            )
        by_id = {id(target): _dense(value) for target, value in zip(asked, found, strict=False) if value is not None}
    return [by_id.get(id(target)) for target in targets]


def _missed(graph: Graph, tape: Any) -> list[Any]:
    """Return the known variables that the tape has watched and that the losses, as far as was recorded, do not depend on."""
    reached = {id(leaf) for leaf in graph._leaves}
    found = []
    for variable in tape.watched_variables():
        leaf = getattr(variable.handle, "_unigrad", None)
        # One that was frozen when it was used, and is not any more, is left out on purpose.
        if isinstance(leaf, Leaf) and id(leaf) not in reached and leaf.trainable() and not leaf.passed_over:
            found.append(variable)
    return found


def identity_of(loss: Any, tape: Any) -> Any:
    """Return a loss as a tensor that the tape knows."""
    return raw(loss).read_value() if _is_variable(loss) else loss


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def release(graph: Graph) -> None:
    """End the tapes that recorded something of the graph."""
    region = _open.region
    for epoch in graph.epochs:
        epoch.released = True
        if region is not None and epoch is region.epoch:
            region.renew()


def watch(tensor: Any) -> Any:
    """Return a new tensor of the same values, still connected to the tensor's own graph; alters nothing."""
    region = _open.region
    if isinstance(tensor, keras.Variable):
        tensor = raw(tensor)
    if _is_variable(tensor):
        tensor = tensor.read_value()
    twin = identity(tensor)
    mask = getattr(tensor, "_keras_mask", None)
    if mask is not None:
        twin._keras_mask = mask
    if in_recompute():
        watched_inside(twin)
        return twin
    if region is None:
        return twin
    if node_of(twin) is None:
        attach(twin, Twin(twin))
    region.keep_watching(twin)
    watched_inside(twin)
    return twin


def native_gradient(parameter: Any) -> Any | None:
    """Return None: TensorFlow's tools take gradients as arguments, and none looks for them at the parameter."""
    return getattr(raw(parameter), "_unigrad_gradient", None)


def set_native_gradient(parameter: Any, gradient: Any | None) -> None:
    """Keep the gradient where :func:`native_gradient` finds it."""
    raw(parameter)._unigrad_gradient = gradient

"""The parts of TensorFlow and Keras that are not public, in one place, tried when the backend is loaded."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import keras
import tensorflow as tf

try:
    from keras.src.backend.common import global_state
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope
    from keras.src.layers.layer import Layer
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import context, execute, forwardprop_util, imperative_grad, record
    from tensorflow.python.eager.polymorphic_function.concrete_function import _ForwardBackwardCall
    from tensorflow.python.framework import auto_control_deps
    from tensorflow.python.framework.ops import _gradient_registry
    from tensorflow.python.ops import (
        control_flow_util,
        control_flow_v2_func_graphs,
        gen_array_ops,
        gen_resource_variable_ops,
    )
    from tensorflow.python.ops.parallel_for.control_flow_ops import _pfor_impl as _vectorize
except ImportError as cause:
    raise ImportError(
        f"tensorflow {tf.__version__} with keras {keras.__version__} lacks what this backend was written for "
        f"(tensorflow 2.21, keras 3.15): {cause}"
    ) from cause

from unigrad.errors import UnigradError

__all__ = [
    "Layer",
    "add_callback",
    "any_tape",
    "automatic_dependencies",
    "call_state",
    "captured",
    "changed_inputs",
    "compiled_by_xla",
    "differentiable",
    "differentiated",
    "function_operations",
    "has_tangents",
    "identity",
    "in_control_flow",
    "in_symbolic_call",
    "outermost",
    "owner",
    "present_seed_generator",
    "raw",
    "read",
    "record_operation",
    "remove_callback",
    "restored",
    "set_seed_generator",
    "should_record",
    "should_record_outside",
    "stop_recording",
    "stopped",
    "tell_no_more",
    "tell_of_records",
    "unstopped",
    "variable_of",
    "wait",
    "watch_graph",
    "watcher_new",
    "watcher_remove",
    "watcher_variables",
]

# AutoGraph and Keras otherwise raise another exception, or another message, in place of an error of ours.
UnigradError.ag_pass_through = True  # type: ignore[attr-defined]
UnigradError._keras_call_info_injected = True  # type: ignore[attr-defined]

_lock = threading.Lock()
_callbacks = 0


def add_callback(callback: Callable[..., Any]) -> None:
    """Have ``callback`` told of each operation of this thread.

    TensorFlow keeps its callbacks by thread, but has one function for all threads that tells them, which the first thread to remove a
    callback would take from the others.
    """
    global _callbacks
    with _lock:
        _callbacks += 1
        context.context().add_op_callback(callback)
        execute.execute = execute.execute_with_callbacks


def remove_callback(callback: Callable[..., Any]) -> None:
    """Undo :func:`add_callback`."""
    global _callbacks
    with _lock:
        _callbacks -= 1
        context.context().remove_op_callback(callback)
        if not _callbacks and not context.context().op_callbacks:
            execute.execute = execute.quick_execute


identity = gen_array_ops.identity
stop_recording = record.stop_recording
stopped: Callable[[], bool] = pywrap_tfe.TFE_Py_TapeSetIsStopped
watcher_new = pywrap_tfe.TFE_Py_VariableWatcherNew
watcher_remove = pywrap_tfe.TFE_Py_VariableWatcherRemove
watcher_variables = pywrap_tfe.TFE_Py_VariableWatcherWatchedVariables

_CONTEXTS = ("current_call_ctx", "autocast_scope")


def any_tape() -> bool:
    """Whether a gradient tape, of anybody, records in this thread now."""
    return not pywrap_tfe.TFE_Py_TapeSetIsEmpty()


@contextmanager
def unstopped() -> Iterator[None]:
    """Run as if nobody had stopped recording in this thread."""
    if not stopped():
        yield
        return
    pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def has_tangents(tensors: Sequence[Any]) -> bool:
    """Whether a ``tf.autodiff.ForwardAccumulator`` follows one of the tensors."""
    return any(forwardprop_util.pack_tangents(list(tensors)).indices)


@contextmanager
def recorded_inside() -> Iterator[None]:
    """Let tapes that are opened inside record, though recording is stopped in this thread.

    TensorFlow has one switch for all tapes of a thread. While a tape is open that was opened inside, those outside record too.
    """
    with _inside.lock:
        _inside.users += 1
        if _inside.users == 1:
            tf.GradientTape._push_tape, tf.GradientTape._pop_tape = _push, _pop
    before, _inside.local.open = getattr(_inside.local, "open", None), []
    try:
        yield
    finally:
        _inside.local.open = before
        with _inside.lock:
            _inside.users -= 1
            if not _inside.users:
                tf.GradientTape._push_tape, tf.GradientTape._pop_tape = _inside.push, _inside.pop


class _Inside:
    lock = threading.Lock()
    local = threading.local()
    users = 0
    push = tf.GradientTape._push_tape
    pop = tf.GradientTape._pop_tape


_inside = _Inside


def _push(tape: Any) -> None:
    _inside.push(tape)
    tapes = getattr(_inside.local, "open", None)
    if tapes is not None and (tapes or stopped()):
        tapes.append(tape)
        if len(tapes) == 1:
            pywrap_tfe.TFE_Py_TapeSetRestartOnThread()


def _pop(tape: Any) -> None:
    _inside.pop(tape)
    tapes = getattr(_inside.local, "open", None)
    if tapes and any(tape is known for known in tapes):
        tapes[:] = [known for known in tapes if known is not tape]
        if not tapes:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def captured(tensor: Any) -> Any:
    """Return what stands for a tensor with values in the function that is being traced; a tensor of the function itself."""
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if not hasattr(graph, "capture") or tf.is_symbolic_tensor(tensor):
        return tensor
    return graph.capture(tensor)  # type: ignore[union-attr]  # of a function's graph


def should_record(tensors: Sequence[Any]) -> bool:
    """Whether some tape of this thread has recorded what leads to one of the tensors, also while recording is stopped."""
    with unstopped():
        return bool(pywrap_tfe.TFE_Py_TapeSetShouldRecordBackprop(list(tensors)))


def should_record_outside(tensors: Sequence[Any]) -> bool:
    """As :func:`should_record`, but for the tapes that were opened inside of a region that runs."""
    inner = list(getattr(_inside.local, "open", None) or ())
    for tape in reversed(inner):
        _inside.pop(tape)
    try:
        return should_record(tensors)
    finally:
        for tape in inner:
            _inside.push(tape)


def raw(variable: Any) -> Any:
    """Return the ``tf.Variable`` of a variable of Keras, whatever its value is taken to be in a scope of casts; else the object itself."""
    return variable._value if isinstance(variable, keras.Variable) else variable


def read(variable: Any) -> Any:
    """Return the value of a variable without telling a tape or a watcher."""
    plain = raw(variable)
    with stop_recording():
        return gen_resource_variable_ops.read_variable_op(plain.handle, plain.dtype)


def owner(variable: Any) -> Any:
    """Return the variable of Keras that holds a ``tf.Variable``, else the ``tf.Variable`` itself.

    Keras keeps no way back, so the garbage collector is asked who refers to it.
    """
    for holder in gc.get_referrers(variable):
        if isinstance(holder, keras.Variable) and holder._value is variable:
            return holder
        if isinstance(holder, dict) and holder.get("_value") is variable:
            for outer in gc.get_referrers(holder):
                if isinstance(outer, keras.Variable) and outer._value is variable:
                    return outer
    return variable


def variable_of(handle: Any) -> Any:
    """Return the ``tf.Variable`` of a handle, None if there is none."""
    for holder in gc.get_referrers(handle):
        if isinstance(holder, tf.Variable) and holder.handle is handle:
            return holder
        if isinstance(holder, dict) and holder.get("_handle") is handle:
            for outer in gc.get_referrers(holder):
                if isinstance(outer, tf.Variable) and outer.handle is handle:
                    return outer
    return None


def outermost(tensor: Any) -> Any:
    """Return what a placeholder of a traced function stands for outside of all functions that are being traced; else the tensor itself."""
    while tf.is_symbolic_tensor(tensor) and tensor.op.type == "Placeholder":
        outer = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        if outer is None:
            break
        tensor = outer
    return tensor


class _Told:
    """Exchanges what TensorFlow calls to record an operation by hand, while somebody wants to know of it.

    A custom gradient, the call of a traced function and the reading of a variable in a trace are recorded this way, and in a trace no op
    callback is told of the call of a function.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.plain = record.record_operation
        self.plain_call = _ForwardBackwardCall.record
        self.callback: Callable[[str, Sequence[Any], Sequence[Any]], None] = lambda *_: None

    def record(self, op_type: str, output_tensors: Any, input_tensors: Any, *rest: Any, **named: Any) -> None:
        """Record, and tell."""
        self.plain(op_type, output_tensors, input_tensors, *rest, **named)
        self.callback(op_type, output_tensors, input_tensors)

    def call(self, call: Any, outputs: Any) -> None:
        """Record the call of a function, and tell if it is a part of a function that is being traced."""
        self.plain_call(call, outputs)
        if not tf.executing_eagerly():
            operation = outputs if isinstance(outputs, tf.Operation) else outputs[0].op if outputs else None
            if operation is not None:
                self.callback(operation.get_attr("f").name, operation.outputs, call._inference_args)


_told = _Told()


def tell_of_records(callback: Callable[[str, Sequence[Any], Sequence[Any]], None]) -> None:
    """Have ``callback(operation, outputs, inputs)`` called after each operation that code records by hand, in every thread."""
    with _told.lock:
        _told.users += 1
        _told.callback = callback
        if _told.users == 1:
            record.record_operation = _told.record
            _ForwardBackwardCall.record = lambda call, outputs: _told.call(call, outputs)


def record_operation(
    name: str, outputs: Sequence[Any], inputs: Sequence[Any], backward: Callable[..., list[Any]]
) -> None:
    """Have the tapes of this thread record tensors as the results of one operation, of which they keep ``backward`` alone."""
    record.record_operation(name, outputs, inputs, backward)


def tell_no_more() -> None:
    """Undo :func:`tell_of_records`."""
    with _told.lock:
        _told.users -= 1
        if not _told.users:
            record.record_operation = _told.plain
            _ForwardBackwardCall.record = _told.plain_call


def watch_graph(graph: Any, callback: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``callback(operation)`` for each operation that is put into a graph; returns the undo.

    Of those that are not made by the functions of operations, as in ``tf.vectorized_map``, op callbacks are not told.
    """
    create = graph._create_op_internal
    plain = isinstance(create, MethodType)

    def told(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        callback(made)
        return made

    graph._create_op_internal = told

    def undo() -> None:
        if plain:
            del graph._create_op_internal
        else:
            graph._create_op_internal = create

    return undo


def differentiated(tape: Any, losses: Sequence[Any], sources: Sequence[Any], given: Any) -> list[Any]:
    """Return the gradients of a tape, whether or not it records; the public way warns of what a second order needs."""
    return list(
        imperative_grad.imperative_grad(
            tape._tape,
            [_handle(loss) for loss in losses],
            [_handle(source) for source in sources],
            output_gradients=given,
            sources_raw=list(sources),
            unconnected_gradients=tf.UnconnectedGradients.NONE,
        )
    )


def _handle(tensor: Any) -> Any:
    return tensor.handle if isinstance(tensor, tf.Variable) else tensor


def differentiable(operation: str) -> bool:
    """Whether TensorFlow has a gradient for an operation."""
    try:
        return _gradient_registry.lookup(operation) is not None
    except LookupError:
        return True


def function_operations(name: str) -> Iterator[str]:
    """Yield the types of all operations of a traced function, those of the functions that it calls included."""
    waiting, seen = [name], {name}
    while waiting:
        definition = context.context().get_function_def(waiting.pop())
        if definition is None:
            continue
        for node in definition.node_def:
            yield node.op
            for value in node.attr.values():
                for called in (value.func.name, *(inner.name for inner in value.list.func)):
                    if called and called not in seen:
                        seen.add(called)
                        waiting.append(called)


def changed_inputs(name: str, changing: Callable[[str], bool]) -> list[int]:
    """Return which inputs of a traced function are variables that it writes, itself or in a function that it calls."""
    definition = context.context().get_function_def(name)
    if definition is None:
        return []
    place = {argument.name: index for index, argument in enumerate(definition.signature.input_arg)}
    found = set()
    for node in definition.node_def:
        written = [0] if changing(node.op) else []
        first = 1 if node.op in ("Case", "If", "StatelessCase", "StatelessIf") else 0  # which branch
        for value in node.attr.values():
            for called in (value.func.name, *(inner.name for inner in value.list.func)):
                if called:
                    written += [first + index for index in changed_inputs(called, changing)]
        found.update(place[node.input[index]] for index in written if node.input[index] in place)
    return sorted(found)


def in_control_flow() -> bool:
    """Whether the body of a loop, or a branch, is being traced; that of ``tf.vectorized_map`` has no graph of its own."""
    if tf.executing_eagerly():
        return False
    kinds = control_flow_v2_func_graphs
    if isinstance(
        tf.compat.v1.get_default_graph(),
        kinds.CondBranchFuncGraph | kinds.WhileBodyFuncGraph | kinds.WhileCondFuncGraph,
    ):
        return True
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code is _vectorize.__code__:
            return True
        frame = frame.f_back
    return False


def in_symbolic_call(args: Any, kwargs: Any) -> bool:
    """Whether a layer is called to find its place in a functional model, not to compute."""
    return in_symbolic_scope() or any(
        isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten((args, kwargs))
    )


def present_seed_generator() -> Any:
    """Return the generator from which Keras draws where no other is given; None before the first draw."""
    return global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)


def set_seed_generator(generator: Any) -> Any:
    """Have Keras draw from this generator where no other is given, and return it."""
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
    return generator


def automatic_dependencies(graph: Any) -> Any:
    """Return what orders the use of variables in a graph, None if something does so already."""
    present = getattr(graph, "experimental_acd_manager", None)
    return None if present is not None else auto_control_deps.AutomaticControlDependencies()


def compiled_by_xla(graph: Any) -> bool:
    """Whether a graph is traced for XLA; not so where a function that was traced before is called by one that is compiled."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def wait(operation: Any, other: Any) -> None:
    """Let an operation of a graph run after another one, though both exist already."""
    operation._add_control_input(other)


def call_state() -> dict[str, Any]:
    """Return what Keras knows of the running call: the mode, and the scope of casts."""
    return {name: global_state.get_global_attribute(name) for name in _CONTEXTS}


@contextmanager
def restored(state: dict[str, Any]) -> Iterator[None]:
    """Run with what Keras knew of a call."""
    before = call_state()
    for name, value in state.items():
        global_state.set_global_attribute(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


def _try_out() -> None:
    """Raise ``ImportError`` unless an operation tells its own outputs, and a tape of another is noticed."""
    if not tf.executing_eagerly() or stopped():  # loaded within a tf.function
        return
    told: list[Any] = []

    def note(
        operation: Any, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        told.extend(outputs)

    x = tf.constant(1.0)
    by_hand: list[Any] = []
    double = tf.custom_gradient(lambda x: (x * 2.0, lambda gradient: gradient * 2.0))
    add_callback(note)
    tell_of_records(lambda _, outputs, inputs: by_hand.extend((*outputs, *inputs)))
    try:
        y = x * 2.0
        z = double(x)
    finally:
        tell_no_more()
        remove_callback(note)
    y._unigrad_try = None
    with tf.GradientTape() as tape:
        tape.watch(x)
        noticed = any_tape() and should_record([x]) and not should_record([y])
        with stop_recording():
            noticed = noticed and stopped() and should_record([x])
    layer = keras.layers.Layer()
    optimizer = keras.optimizers.SGD(name="unigrad")  # a name that Keras does not count
    missing = [
        what
        for what, found in (
            ("op callbacks that see outputs", any(one is y for one in told)),
            ("custom gradients that can be seen", {id(x), id(z)} <= {id(one) for one in by_hand}),
            ("tapes that can be asked", noticed),
            ("losses of a layer", isinstance(getattr(layer, "_losses", None), list)),
            ("variables tracked by a layer", hasattr(layer, "_trainable_variables") and hasattr(layer, "_layers")),
            ("parameters of an optimizer", isinstance(getattr(optimizer, "_trainable_variables", None), list)),
        )
        if not found
    ]
    if missing:
        raise ImportError(
            f"tensorflow {tf.__version__} with keras {keras.__version__} works otherwise than this backend needs: "
            f"{', '.join(missing)}"
        )


_try_out()

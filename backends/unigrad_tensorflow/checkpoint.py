"""Recompute by a gradient function of our own: a region is one operation of the tape, which runs the function again.

The forward runs where no tape sees it. What it returned is then recorded as the result of one operation of the arguments, of the values
of the variables that it used, and of what was watched inside. Several outputs each pass through a gate, an operation that tells whether
a backward reached it: what only other outputs depend on stays without a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import tensorflow as tf

from unigrad import tree
from unigrad.captures import name_in
from unigrad.errors import (
    CapturedTensorError,
    RecomputeMismatchError,
    UnsupportedError,
)
from unigrad.protocols import Region
from unigrad.recompute import in_recompute
from unigrad_tensorflow.added import exchanged, losses, part
from unigrad_tensorflow.arrays import is_variable, narrow, part_of
from unigrad_tensorflow.calls import ambient, mode
from unigrad_tensorflow.captures import foreign, watched
from unigrad_tensorflow.fingerprint import fingerprint
from unigrad_tensorflow.graph import Node, Recorder, attach, current, hidden, node_of, opened, tapes
from unigrad_tensorflow.ordering import Turn, turn
from unigrad_tensorflow.parts import TOKEN, Link, dense, handed_on, operation
from unigrad_tensorflow.private import (
    call_state,
    captured,
    differentiated,
    identity,
    recorded_inside,
    restored,
    should_record,
    stop_recording,
    unstopped,
)
from unigrad_tensorflow.recompute import in_forward, inside, rerunning, running
from unigrad_tensorflow.refusals import (
    Replayable,
    no_creation,
    refuse_arguments,
    refuse_composite,
    refuse_control_flow,
    refuse_forward_mode,
    refuse_hidden,
)
from unigrad_tensorflow.rounding import Witness, depending, witnessed
from unigrad_tensorflow.tape import open_now

__all__ = ["fingerprint", "part", "refuse_arguments", "run"]


def run(region: Region) -> Any:
    """Run the region so that of its inner values nothing is kept until a backward."""
    return _Call(region).forward()


def _is_differentiable(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


class _Call:
    """One call of a region.

    Parameters
    ----------
    region
        The region.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.context = call_state()
        self.mode = mode()
        args, kwargs = region.args, region.kwargs
        leaves, self._layout = tree.flatten((args, kwargs))
        # Containers of its own and without the tensors: the function or its caller may change those that were given.
        self._like = tree.unflatten(self._layout, [None] * len(leaves), (args, kwargs))
        refuse_control_flow()
        for leaf in leaves:
            refuse_composite(leaf, _node)
        tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and not is_variable(leaf)}
        places = {key: index for index, key in enumerate(tensors)}
        self._leaves = [places.get(id(leaf), _Other(leaf)) for leaf in leaves]
        self._arguments = list(tensors.values())
        # Of the arguments, those that get a gradient are inputs of the operation; the others are kept as they are.
        self.nodes = {id(tensor): node for tensor in self._arguments for node in [_node(tensor)] if node is not None}
        self._serial = Node((), None, "").serial
        self._eager = tf.executing_eagerly()
        self._kept: list[Any] = []
        self._variables: list[Any] = []
        self._losses = 0
        self._collects = False
        self._twins = 0
        self._gates: dict[int, bool] = {}
        self._single = True
        self._link: Link | None = None
        self._witness = Witness()

    def forward(self) -> Any:
        """Run the function, and record it as one operation."""
        region = self.region
        args, kwargs = region.args, region.kwargs
        region.args, region.kwargs = (), {}  # type: ignore[misc]  # inside another region they are inner values of that one
        outer, nested = current(), in_forward()
        with ExitStack() as stack:
            others = stack.enter_context(hidden()) or bool(nested)
            if others:
                refuse_forward_mode(self._arguments)
                stack.enter_context(stop_recording())
                stack.enter_context(recorded_inside())
            collects = stack.enter_context(running(others))
            region_of_thread = open_now()
            if outer is not None and region_of_thread is not None and not others and nested is None:
                stack.enter_context(region_of_thread.inner())
            epoch = None if outer is None or region_of_thread is None else region_of_thread.epoch
            recorder = Recorder(epoch, within=others)
            recorder.above = outer
            recorder.local = {
                key: node for key, node in self.nodes.items() if node_of_key(self._arguments, key) is None
            }
            recorder.entering = self._entering(outer)
            if not in_recompute():
                recorder.foreign = _foreign(outer, others)
            recorder.every = Replayable(self.region).check
            stack.enter_context(recorder)
            twins = stack.enter_context(inside())
            took = stack.enter_context(losses(again=False))
            with witnessed(self._witness):
                outputs = region.function(*args, **kwargs)
            self._collects = collects()
        if others:
            refuse_forward_mode(leaf.variable.read_value() for leaf in recorder.used.values())
        if nested is not None:  # the recompute of the region around it will record this one
            return outputs
        recorder.epoch = None if outer is None else outer.epoch
        return self._record(outputs, took.left(), twins, recorder)

    def _entering(self, outer: Recorder | None) -> Callable[[str, Any, Any], None] | None:
        if in_recompute():
            return None  # the forward was looked at
        above = None if outer is None else outer.entering
        function, serial = self.region.function, self._serial
        known = [*self._arguments, *map(captured, self._arguments)]
        arguments = {id(tensor) for tensor in known}

        def entering(operation: str, tensor: Any, node: Any) -> None:
            if above is not None:
                above(operation, tensor, node)
            if id(tensor) in arguments or (node is not None and node.serial > serial):
                return
            name = name_in(function, lambda found: found is tensor)
            what = f"{name!r}, a tensor" if name else "a tensor"
            raise CapturedTensorError(
                f"{what} of shape {tuple(tensor.shape)} made outside of a checkpointed region is used inside (by {operation}) and needs "
                "a gradient; pass it as an argument of the function, or tf.stop_gradient() it"
            )

        return entering

    def _record(self, outputs: Any, added: list[tuple[Any, Any]], twins: list[Any], recorder: Recorder) -> Any:
        found, layout = tree.flatten(outputs)
        for leaf in found:
            refuse_hidden(leaf)
        everything = [*found, *(loss for _, loss in added)]
        places = [
            index
            for index, tensor in enumerate(everything)
            if _is_differentiable(tensor) and (id(tensor) in self.nodes or node_of(tensor) is not None)
        ]
        if not places:
            return outputs
        self.region.finish(outputs)
        self._places, self._losses, self._twins = places, len(added), len(twins)
        self._variables = [leaf.variable for leaf in recorder.used.values() if leaf.variable is not None]
        inputs = [tensor for tensor in self._arguments if id(tensor) in self.nodes and _is_differentiable(tensor)]
        given = {id(tensor) for tensor in inputs}
        self._inputs = [index for index, tensor in enumerate(self._arguments) if id(tensor) in given]
        self._kept = [None if id(tensor) in given else _Kept(tensor) for tensor in self._arguments]
        # One of several parts of a batch has an output more, on which the next part depends.
        shared = self.region.shared if self._variables else None
        self._single = len(places) == 1 and shared is None
        nodes = [self.nodes.get(id(everything[index])) or node_of(everything[index]) for index in places]
        masks = [getattr(everything[index], "_keras_mask", None) for index in places]
        self._masks = [getattr(tensor, "_keras_mask", None) for tensor in self._arguments]
        self._arguments = []
        self.nodes = {}
        if shared is None:
            values = [variable.read_value() for variable in self._variables]
        else:
            values, self._link = handed_on(self._variables, shared)
        operands = [*inputs, *values, *twins]
        self._given = [_Kept(tensor) for tensor in operands]
        for tape in tapes():  # which was hidden when these were watched, and takes note of nothing then
            for twin in twins:
                tape.watch(twin)
        epoch = recorder.epoch
        results = [everything[index] for index in places]
        made = operation(results if shared is None else [*results, tf.zeros(())], self.backward, operands)
        if shared is not None:
            shared[TOKEN] = made.pop()
        if not self._single:
            made = [operation([tensor], _Gate(self._gates, number), [tensor])[0] for number, tensor in enumerate(made)]
        for index, tensor, node, mask in zip(places, made, nodes, masks, strict=True):
            if epoch is not None:
                attach(tensor, Node((node,), epoch, "Checkpoint"))
            if mask is not None:
                tensor._keras_mask = mask
            everything[index] = tensor
        exchanged(added, everything[len(found) :])
        return tree.unflatten(layout, everything[: len(found)], outputs)

    def backward(self, gradients: Sequence[Any]) -> list[Any]:
        """Run the function again and return the gradients of the operation's inputs."""
        if self._eager and not tf.executing_eagerly():
            raise UnsupportedError(
                "the forward of a checkpointed region ran eagerly, and its backward is being traced, where no values can be compared; "
                "jacobian() and batch_jacobian() do so: pass experimental_use_pfor=False, or run both inside of one tf.function"
            )
        reached = [0] if self._single else list(self._gates)
        self._gates.clear()
        if not reached:  # but a part after this one is
            return [None] * len(self._given)
        later = gradients[len(self._places) :]
        gradients = [dense(gradients[number]) for number in reached]
        with turn([*gradients, *later]) as own:
            found = self._recompute(own, gradients, reached)
            if self._link is not None:
                gained = zip(self._variables, found[len(self._inputs) :], strict=False)
                self._link.own.update(id(variable) for variable, gradient in gained if gradient is not None)
            return own.done(found[: len(self._inputs)], found[len(self._inputs) :])

    def _recompute(self, own: Turn, gradients: list[Any], reached: list[int]) -> list[Any]:
        inputs = own.ready([kept.whole for kept in self._given])
        given = {index: self._given[number].of(inputs[number]) for number, index in enumerate(self._inputs)}
        with ExitStack() as stack:
            stack.enter_context(self.region.replay())
            stack.enter_context(restored(self.context))
            if self.mode is not None:
                stack.enter_context(ambient(self.mode))
            stack.enter_context(unstopped())
            stack.enter_context(rerunning())
            stack.enter_context(no_creation())
            twins = stack.enter_context(inside())
            took = stack.enter_context(losses(again=True))
            # One that serves once lets go of what it holds as it goes backward.
            tape = stack.enter_context(opened(tf.GradientTape(persistent=self._collects)))
            thread = open_now()
            if self._collects and thread is not None:
                stack.enter_context(thread.again(tape))
            for variable in self._variables:
                tape.watch(variable)
            fresh = []
            for index, kept in enumerate(self._kept):
                tensor = identity(given[index] if kept is None else kept.of(kept.whole))
                if self._masks[index] is not None:
                    tensor._keras_mask = self._masks[index]
                if index in given:
                    tape.watch(tensor)
                fresh.append(tensor)
            args, kwargs = tree.unflatten(self._layout, [leaf.of(fresh) for leaf in self._places_of()], self._like)
            again = Witness()
            with witnessed(again):
                outputs = self.region.function(*args, **kwargs)
            with depending([self._witness, again]):
                gradients = own.checked(partial(self.region.check, outputs), gradients)
            added = took.left()
            if len(added) != self._losses or len(twins) != self._twins:
                raise RecomputeMismatchError(
                    f"the recompute of a checkpointed region added {len(added)} losses and watched {len(twins)} tensors, its "
                    f"forward {self._losses} and {self._twins}; the function must do the same on each call"
                )
            everything = [*tree.flatten(outputs)[0], *(loss for _, loss in added)]
            head = _head([everything[self._places[number]] for number in reached], gradients)
        targets = [*(fresh[index] for index in self._inputs), *self._variables, *twins]
        del outputs, everything, added, took, args, kwargs
        return differentiated(tape, [head], targets, None)

    def _places_of(self) -> list[Any]:
        return [leaf if isinstance(leaf, _Other) else _Index(leaf) for leaf in self._leaves]


class _Kept:
    """A tensor that is needed again; of a part the whole is kept, which is there anyway, and not another copy."""

    __slots__ = ("place", "whole")

    def __init__(self, tensor: Any) -> None:
        part = part_of(tensor)
        self.whole, self.place = (tensor, None) if part is None else (part[0], part[1:])

    def of(self, whole: Any) -> Any:
        """Return the tensor, from what was kept or a tensor of the same values."""
        return whole if self.place is None else narrow(whole, *self.place)


class _Other:
    """An argument that is no tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def of(self, tensors: list[Any]) -> Any:
        return self.value


class _Index:
    """The place of a tensor among the arguments."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index

    def of(self, tensors: list[Any]) -> Any:
        return tensors[self.index]


def _foreign(outer: Recorder | None, others: bool) -> Callable[[Any], bool] | None:
    """Return what tells which tensors without a node need a gradient: those of tapes that no collector knows, or of the region around."""
    if outer is None:
        return foreign(others)
    return outer.foreign or (watched if others else None)


def _node(tensor: Any) -> Any:
    """Return the node of an argument, made up where a tape of somebody else, or the traced function, may want its gradient."""
    node = node_of(tensor)
    if node is None and _is_differentiable(tensor) and (tf.is_symbolic_tensor(tensor) or should_record([tensor])):
        return Node((), None, "Argument")
    return node


def node_of_key(tensors: list[Any], key: int) -> Any:
    """Return what hangs on the tensor of an id."""
    return next((node_of(tensor) for tensor in tensors if id(tensor) == key), None)


class _Gate:
    """Gradient function that tells that a backward has reached an output."""

    def __init__(self, reached: dict[int, bool], number: int) -> None:
        self.reached = reached
        self.number = number

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        self.reached[self.number] = True
        return list(gradients)


def _head(outputs: list[Any], gradients: list[Any]) -> Any:
    """Return a number whose gradient reaches the outputs with the given ones.

    TensorFlow takes the operations behind the last input of an operation first. In the plain run they are taken in the order in which
    the outputs were reached, and sums of several contributions to an inner value depend on it.
    """
    if len(outputs) == 1:
        return operation([tf.zeros(())], lambda _: gradients, outputs)[0]
    return operation([tf.zeros(())], lambda _: gradients[::-1], outputs[::-1])[0]

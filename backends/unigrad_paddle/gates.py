"""What stands in the graph for a region: a gate at each output, which leads to exactly the tensors that the output depends on.

A gate adds minus zero, made of one element of each of these tensors, and so gives the very bits. In a backward its hook
stores the gradient of the output, and sends ones down. At each tensor waits another hook that puts the gradient found by a recompute
in the place of what arrives, and asks for a recompute where there is none yet with all gates that took part. What arrives tells which
gates these are, so that nothing of another backward is ever taken. No node of the region itself is in the graph: they can be run only
once, and a ``PyLayer`` too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from unigrad.errors import GraphReleasedError, UnsupportedError
from unigrad_paddle.engines import creates_graph, is_last
from unigrad_paddle.faults import kept
from unigrad_paddle.framework import node_of, shrink, view
from unigrad_paddle.guards import register
from unigrad_paddle.marks import GATES

_TRUE = paddle.full([1], True, "bool")
_MINUS_ZERO = paddle.full([1], -0.0, "float32")

Recompute = Callable[[Mapping[int, Any]], list[Any | None]]


class Gates:
    """The gates of one call.

    Parameters
    ----------
    inputs
        Tensors that need a gradient and that some output depends on.
    depends
        For each gate the numbers of its inputs.
    recompute
        Gives the gradient of each input for the gradients of some outputs, by number.
    """

    def __init__(self, inputs: Sequence[Any], depends: Sequence[Sequence[int]], recompute: Recompute) -> None:
        self._inputs = inputs
        self._forms: list[tuple[Any, Any]] = []
        self._waiting = set(range(len(inputs)))
        self._depends = [frozenset(numbers) for numbers in depends]
        self._recompute: Recompute | None = recompute
        self._counts = [0] * len(depends)
        self._spent = [0] * len(depends)
        self._vectors: list[Any | None] = [None] * len(depends)
        self._owed = [0] * len(depends)
        self._taking: dict[int, frozenset[int]] = {}
        self._served: dict[int, int] = {}
        self._found: dict[int, Any] = {}

    def build(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the outputs behind their gates."""
        several = len(outputs) > 1
        firsts = []
        for number, tensor in enumerate(self._inputs):
            whole = tensor.unsqueeze(0)  # a node of its own; a hook of a reshaped leaf would be one of the leaf
            self._forms.append((whole.shape, whole.dtype))
            first = whole
            if not tensor.size:
                first = whole.sum().reshape([1])
            elif tensor.is_contiguous():
                shrink(whole)  # so that what arrives here in a backward, only to be replaced, is one number
            else:
                first = whole.flatten()[0:1]
            register(whole, self._hook(self._give, number))
            if first.dtype != paddle.float32:
                first = first.astype("float32")
            if several:
                first = first.expand([len(outputs)])
                register(first, self._hook(self._note, number))
            firsts.append(first)
        self._inputs = ()
        return [self._gate(gate, output, firsts) for gate, output in enumerate(outputs)]

    def _gate(self, gate: int, output: Any, firsts: Sequence[Any]) -> Any:
        numbers = sorted(self._depends[gate])
        several = len(self._depends) > 1
        parts = [firsts[number][gate : gate + 1] if several else firsts[number] for number in numbers]
        joined = paddle.concat(parts) if len(parts) > 1 else parts[0].scale(1.0)  # a node of its own in any case
        ones = paddle.ones([len(parts)], "float32")
        register(joined, lambda gradient: ones)
        zero = paddle.where(_TRUE, _MINUS_ZERO, joined[0:1]).reshape([1] * output.ndim)
        if output.is_complex():
            zero = paddle.complex(zero, zero)  # a cast would add a plus zero to the imaginary part
        made = output.detach() + (zero if zero.dtype == output.dtype else zero.astype(output.dtype))
        register(made, self._hook(self._store, gate))
        GATES.add([node_of(made)])
        given = view(made)  # a node of its own, whose hooks are the caller's and run before what is stored
        register(given, self._hook(self._refuse_second_order, gate))
        return given

    def _hook(self, function: Callable[[int, Any], Any], number: int) -> Callable[[Any], Any]:
        def hook(gradient: Any) -> Any:
            with kept(own=True):
                return function(number, gradient)

        return hook

    def _refuse_second_order(self, gate: int, gradient: Any) -> None:
        # A constant may have a node too, and a gradient that is not recorded may be given one by the caller.
        if creates_graph() and node_of(gradient) is not None:
            raise UnsupportedError(
                "backend 'paddle' does not support second order through a checkpoint (create_graph=True): its recompute is no part "
                "of the graph. Set enabled = False on what is checkpointed"
            )

    def _store(self, gate: int, gradient: Any) -> None:
        self._counts[gate] += 1
        self._vectors[gate] = gradient.detach()
        self._owed[gate] = len(self._depends[gate])

    def _note(self, number: int, gradient: Any) -> None:
        self._taking[number] = frozenset(np.flatnonzero(gradient.numpy()).tolist())

    def _give(self, number: int, gradient: Any) -> Any:
        taking = self._taking.pop(number) if len(self._depends) > 1 else frozenset((0,))
        if not self._serves(number, taking):
            self._run(number, taking)
        found = self._found.pop(number, None)
        self._waiting.discard(number)
        if not self._waiting and is_last():
            self._recompute = None
        for gate in taking:
            self._owed[gate] -= 1
            if not self._owed[gate]:
                self._vectors[gate] = None
        shape, dtype = self._forms[number]
        return paddle.zeros(shape, dtype) if found is None else found.reshape(shape)

    def _serves(self, number: int, taking: frozenset[int]) -> bool:
        """Whether the latest recompute took the gates that this input waits for, as they are now, and no other one."""
        return (
            number in self._found
            and all(self._served.get(gate) == self._counts[gate] for gate in taking)
            and not any(number in self._depends[gate] for gate in self._served.keys() - taking)
        )

    def _run(self, number: int, taking: frozenset[int]) -> None:
        fresh = {
            gate
            for gate, count in enumerate(self._counts)
            if count != self._spent[gate] and (gate in taking or number not in self._depends[gate])
        }
        gates = sorted(taking | fresh)
        self._found = {}
        if self._recompute is None:
            raise GraphReleasedError(
                "a checkpointed region of this graph was released by an earlier backward; pass retain_graph=True to that one, or run "
                "the forward again"
            )
        found = self._recompute({gate: self._vectors[gate] for gate in gates})
        for gate in gates:
            self._spent[gate] = self._counts[gate]
        self._served = {gate: self._counts[gate] for gate in gates}
        self._found = dict(enumerate(found))
        if len(self._depends) == 1 and is_last():
            self._recompute = None  # nothing more will be asked of it, and its arguments can go

"""GradientCollector: gradients of one block's parameters and of watched tensors, under one rule."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

from unigrad import names, recording, usage
from unigrad.block import Block
from unigrad.errors import (
    ArgumentError,
    ArgumentTypeError,
    BackendMismatchError,
    CollectorClosedError,
    GraphReleasedError,
    UnsupportedError,
    WrongThreadError,
)
from unigrad.gradients import Gradients, Store
from unigrad.losses import check_flag, check_losses, check_weight, require_number, require_tensor
from unigrad.protocols import Backend, Capability, Engine, Graph, NativeEngine
from unigrad.recompute import in_recompute
from unigrad.tracing import refuse_traced
from unigrad.unpickled import Unpickled
from unigrad.usage import Usage
from unigrad.uses import Uses
from unigrad.wrapping import wrap

if TYPE_CHECKING:
    from unigrad.optimizer import Optimizer

__all__ = ["GradientCollector"]


class GradientCollector(Unpickled):
    """Collects the gradients of one block, of every loss given to :meth:`backward`.

    Parameters
    ----------
    block
        A block, a native model, a mapping of name to tensor, or a mapping of prefix to block.
    accumulate
        ``"write"``: ``gradients`` holds those of the last backward. ``"add"``: their sum per name.
    parameters
        Whether parameter gradients are computed; False collects watched tensors only.
    on_unused
        ``"warn"``, ``"error"`` or ``"ignore"`` what is left without a gradient.
    expect_unused
        Patterns of names that are expected to be left without one; a pattern that fits no name is an error.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For an argument that means nothing here.

    Notes
    -----
    A forward is recorded if it runs in the opening thread inside the ``with``. Clauses G0 to G19 and R1 to R3.

    Examples
    --------
    >>> import numpy as np
    >>> import unigrad
    >>> from unigrad_numpy import Parameter
    >>> weight = Parameter(np.array([1.0, 2.0]))
    >>> with unigrad.GradientCollector({"weight": weight}, accumulate="add") as collector:
    ...     for _ in range(2):
    ...         collector.backward((weight * weight).sum())
    >>> collector.gradients["weight"].numpy()
    array([4., 8.])
    """

    _instead = "it belongs to its block and thread; read its gradients, which are copies already"

    def __init__(
        self,
        block: Any,
        accumulate: str = "write",
        *,
        parameters: bool = True,
        on_unused: str = "warn",
        expect_unused: str | Sequence[str] = (),
    ) -> None:
        refuse_traced("a collector")
        if accumulate not in ("write", "add"):
            raise ArgumentError(f"accumulate is 'write' or 'add', not {accumulate!r}")
        usage.check_policy(on_unused)
        if not isinstance(parameters, bool):
            raise ArgumentTypeError(
                f"parameters is True or False, not {parameters!r}; to collect some parameters only, give a mapping of name to tensor"
            )
        self.block: Block = wrap(block)
        self.backend: Backend = self.block.backend
        self._accumulate = accumulate
        self._parameters = parameters
        self._on_unused = on_unused
        self._expected: tuple[str, ...] = ()
        if expect_unused != ():
            self._expected = names.patterns_of(expect_unused, "expect_unused")
            usage.check_expected(self.block, self._expected)
        self._thread = 0
        self._open = False
        self._entered = False
        self._differentiating = False
        self._engine = ""
        self._tape: Engine = self.backend.tape
        self._native: NativeEngine | None = None
        self._store = Store(self.backend)
        self._inputs = Store(self.backend)
        self._watched: dict[str, Any] = {}
        self._origins: set[int] = set()
        self._uses = Uses(self.block)
        self._region: Any = None
        self._weighted: bool | None = None
        self._total = 0.0
        self._judged = True

    def __enter__(self) -> GradientCollector:
        if self._entered:
            raise CollectorClosedError("a collector is entered once; make a new one")
        self._uses.look_up()
        engine = self.block.engine()
        self._region = recording.join(self.backend, self._uses, self._uses.leaves, self.block.waits)
        if engine != "pure":
            self._open_native()
        self._thread = threading.get_ident()
        self._engine = engine
        self._open = self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._check_open("leaving")
        if self._differentiating:
            raise CollectorClosedError("a collector can't be left while its backward runs, as in a hook or a recompute")
        region, self._region = self._region, None
        self._open = False
        if self._native is not None:
            self._native.close()
        complete = self._complete()
        region.leave(self._uses, deliver=not complete)
        if self._uses.strangers:
            self._uses.resolve()
        else:
            self._uses.register()
        try:
            if kind is None and not complete:
                self._judge(stacklevel=2)
        finally:
            self._watched = {}
            self._origins = set()

    def _open_native(self) -> None:
        make = getattr(self.backend.tape, "native", None)
        if make is None:
            return
        try:
            self._tape = self._native = make()
            self._native.enter(self._uses.leaves)
        except BaseException:
            self._region.leave(self._uses, deliver=False)
            raise

    def _require_engine(self) -> None:
        engine = self.block.engine()
        if engine != self._engine:
            raise UnsupportedError(
                f"the model needs the {engine} engine since the collector was entered, which chose the {self._engine} one; enter a "
                "new collector"
            )

    def _check_thread(self) -> None:
        refuse_traced("a collector")
        if not self._entered:
            raise CollectorClosedError("the collector is not open yet; use it inside 'with'")
        if threading.get_ident() != self._thread:
            raise WrongThreadError("a collector belongs to the thread that opened it; open one in each thread")

    def _check_open(self, action: str) -> None:
        self._check_thread()
        if not self._open:
            raise CollectorClosedError(f"{action} belongs inside the 'with' of the collector, which has been left")

    @property
    def engine(self) -> str:
        """Name of the engine that computes the gradients; empty before entering."""
        return self._engine

    @property
    def gradients(self) -> Gradients:
        """Gradients by name, in the parameter's dtype: exactly the parameters that a loss depended on."""
        if self._native is not None:
            self._native.require_reduced()
        return self._store.view(self._divisor())

    @property
    def input_gradients(self) -> Gradients:
        """Gradients of watched tensors by name."""
        return self._inputs.view(self._divisor())

    def _divisor(self) -> float | None:
        if not self._weighted:
            return None
        if self._total == 0:
            raise ArgumentError("all weights so far are 0, so there is no mean; give a backward with a weight above 0")
        return self._total

    def gradients_or_zeros(self) -> Mapping[str, Any]:
        """Return gradients of all parameters that are not frozen, zeros of exact shape and dtype where no loss depended on them."""
        found = self.gradients
        trainable = self.backend.block.trainable
        return {
            name: found[name] if name in found else self.backend.arrays.zeros(tensor)
            for name, tensor in self.block.parameters.items()
            if name in found or trainable(tensor)
        }

    @property
    def usage(self) -> Usage:
        """What happened to each parameter since entering, or since ``zero()``."""
        if self._region is not None and threading.get_ident() == self._thread:
            self._region.deliver()
        self._uses.resolve()
        return usage.sort(self.block, self._uses.used, self._uses.reached, len(self._uses.outside))

    def watch(self, tensor: Any, name: str) -> Any:
        """Collect the gradient of a tensor that is no parameter.

        Parameters
        ----------
        tensor
            Input or intermediate value of a floating dtype; it is not altered.
        name
            Its name in ``input_gradients``; used again, it replaces what was watched under it.

        Returns
        -------
        tensor
            A new tensor of the same values to go on with, still connected to the graph of ``tensor``.

        Raises
        ------
        ArgumentTypeError
            If it is not a tensor of floating dtype.
        UnsupportedError
            If the backend does not declare its dtype.
        """
        self._check_open("watch")
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"a watched tensor has a non-empty string as name, not {name!r}")
        require_tensor(self.backend, tensor, "watch takes a tensor")
        dtype = self.backend.arrays.dtype(tensor)
        if not self.backend.arrays.is_floating(tensor):
            raise ArgumentTypeError(f"only tensors of floating dtype have gradients; {name!r} is {dtype}")
        if dtype not in self.backend.spec.dtypes:
            known = ", ".join(self.backend.spec.dtypes)
            raise UnsupportedError(
                f"backend {self.backend.spec.name!r} does not support gradients of {dtype} ({name!r}); it does of: {known}"
            )
        twin = self.backend.tape.watch(tensor)
        if in_recompute():
            return twin  # the forward's stands in the graph; a checkpoint runs this line again only to save the same values
        self._watched[name] = twin
        self._origins.add(id(tensor))
        if name in self._inputs.values:
            self._inputs.values = {key: value for key, value in self._inputs.values.items() if key != name}
            self._inputs.halves = {key: value for key, value in self._inputs.halves.items() if key != name}
        return twin

    def backward(
        self,
        loss: Any,
        *,
        retain_graph: bool = False,
        weight: float | None = None,
        cotangent: Any = None,
        create_graph: bool = False,
    ) -> None:
        """Add or write the gradients of one loss, or of the sum of several.

        Parameters
        ----------
        loss
            Tensor of one element, or a list of such.
        retain_graph
            Whether the same graph is to be differentiated again.
        weight
            In ``"add"`` only: number of items of which ``loss`` is the mean; ``gradients`` is then the mean over all items.
        cotangent
            For a loss of more elements: the vector of the vector-Jacobian product, of the same shape (a list for a list).
        create_graph
            Whether the gradients themselves can be differentiated; keeps the graph.

        Raises
        ------
        NoGraphError, LossError, ArgumentTypeError
            For what is not a usable loss; the message names the likely cause.
        GraphReleasedError
            If an earlier backward released the graph or a part of it.
        StaleGraphError
            If a value that the graph needs was changed since the forward.
        UnsupportedError
            For ``create_graph`` on a backend that does not declare it, and for what the native engine cannot serve.
        UnreducedError
            If several processes train the model and would not exchange these gradients.

        Notes
        -----
        On any error nothing has changed: not the collector, not native gradients, not modes.
        """
        self._check_open("backward")
        check_flag(retain_graph, "retain_graph")
        check_flag(create_graph, "create_graph")
        if create_graph:
            self.backend.require(Capability.SECOND_ORDER)
        weight = check_weight(weight, self._accumulate, self._weighted)
        losses, cotangents = check_losses(self.backend, loss, cotangent)
        if self._native is not None:
            self._native.begin(self._uses.leaves, self._accumulate, self._parameters, weight)
        graph = self._tape.trace(losses)
        if graph.released is not None:
            raise GraphReleasedError(
                f"the graph of this loss was released at {graph.released!r} by an earlier backward; pass retain_graph=True to "
                "that one, or run the forward again"
            )
        reached, outside = self._uses.split(graph, self._origins, self._watched)
        if outside or self._uses.strangers:
            # Some parameter may have been made, or replaced, since the names were looked up.
            self._uses.resolve()
            self._require_engine()
            reached, outside = self._uses.split(graph, self._origins, self._watched)
        computed: dict[str, Any] = {}
        watched: dict[str, Any] = {}
        if self._accumulate == "add" and self._store.values:
            self._store.require_shapes(reached)
        if weight != 0:
            computed, watched = self._differentiate(graph, cotangents, reached, retain_graph, create_graph)
        elif not retain_graph:
            self._tape.release(graph)
        self._commit(computed, watched, weight, create_graph)
        self._uses.reached.update(reached if weight == 0 or not self._parameters else computed)
        self._uses.outside.update(outside)
        self._judged = False

    def _differentiate(
        self, graph: Graph, cotangents: Sequence[Any], reached: Mapping[str, Any], retain: bool, create: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        tape = self._tape
        own = dict(reached) if self._parameters else {}
        targets = [*own.values(), *self._watched.values()] if self._watched else list(own.values())
        keep = retain or create
        found: Sequence[Any | None] = []
        if targets:
            before, self._differentiating = self._differentiating, True
            try:
                found = tape.vjp(graph, cotangents, targets, retain=keep, create=create)
            finally:
                self._differentiating = before
        if not keep:
            tape.release(graph)
        computed = {name: value for name, value in zip(own, found, strict=False) if value is not None}
        if not self._watched:
            return computed, {}
        rest = found[len(own) :]
        return computed, {name: value for name, value in zip(self._watched, rest, strict=True) if value is not None}

    def _commit(self, computed: dict[str, Any], watched: dict[str, Any], weight: float | None, create: bool) -> None:
        if self._accumulate == "write":
            self._store.values, self._inputs.values = computed, watched
        else:
            with self.backend.tape.no_record() if not create else nullcontext():
                sums = self._store.add(computed, weight)
                inputs = self._inputs.add(watched, weight)
            self._store.values, self._inputs.values = sums, inputs
        self._store.connected = self._inputs.connected = create
        if weight is not None:
            self._weighted = True
            self._total += weight
        elif self._accumulate == "add":
            self._weighted = False

    def zero(self) -> None:
        """Clear the own gradients to none, and begin a new period of ``usage``."""
        self._check_open("zero")
        self._region.deliver()
        self._judge(stacklevel=2)
        if self._native is not None:
            self._native.forget()
        self._store = Store(self.backend)
        self._inputs = Store(self.backend)
        self._uses.clear()
        self._weighted = None
        self._total = 0.0
        self._region.expect(self._uses.leaves, self.block.waits)

    def scale(self, factor: float) -> None:
        """Multiply what is collected, and so what is applied, by a factor."""
        self._check_thread()
        require_number(factor, "scale takes a finite number")
        if not math.isfinite(factor):
            raise ArgumentError(f"scale takes a finite number, not {factor!r}")
        self._multiply(float(factor), (self._store, self._inputs))

    def clip_by_global_norm(self, maximum: float) -> None:
        """Scale what is applied so that the Euclidean norm over all parameter gradients is at most ``maximum``."""
        self._check_thread()
        require_number(maximum, "clip_by_global_norm takes a positive norm")
        if not maximum > 0:
            raise ArgumentError(f"clip_by_global_norm takes a positive norm, not {maximum!r}")
        self._uses.resolve()
        factor = self.backend.arrays.clip_factor(list(self.gradients.values()), float(maximum))
        self._multiply(factor, (self._store,))

    def _multiply(self, factor: Any, stores: Sequence[Store]) -> None:
        scaled = [
            {name: self.backend.arrays.scale(value, factor) for name, value in store.values.items()} for store in stores
        ]
        for store, values in zip(stores, scaled, strict=True):
            store.values = values

    def write_back(self) -> None:
        """Put the gradients where the framework's own tools look (``.grad``): own parameters only, none where there is none."""
        self._check_thread()
        found = self._fitting()
        tape = self.backend.tape
        before = [(tensor, tape.native_gradient(tensor)) for tensor in self.block.parameters.values()]
        try:
            for name, tensor in self.block.parameters.items():
                tape.set_native_gradient(tensor, found.get(name))
        except BaseException:
            for tensor, gradient in before:
                tape.set_native_gradient(tensor, gradient)
            raise

    def apply(self, optimizer: Optimizer) -> None:
        """Do one step of a :class:`unigrad.Optimizer` with the collected gradients.

        Parameters without a gradient do not move.

        Raises
        ------
        ArgumentTypeError
            If it is not a ``unigrad.Optimizer``; a native one is stepped by itself after ``write_back()``.
        BackendMismatchError
            If it belongs to another framework.
        ArgumentError
            If it serves none of the block's parameters, or a parameter is of another shape or dtype than its gradient; nothing has moved.
        """
        from unigrad.optimizer import Optimizer

        self._check_thread()
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(
                f"apply takes a unigrad.Optimizer, not a {type(optimizer).__name__}; make one with unigrad.Optimizer(block, "
                "factory), or call write_back() and step the native optimizer"
            )
        if optimizer.backend.spec.name != self.backend.spec.name:
            raise BackendMismatchError(
                f"the optimizer belongs to {optimizer.backend.spec.name}, the collector to {self.backend.spec.name}"
            )
        found = self._fitting()
        by_id = {id(tensor): found[name] for name, tensor in self.block.parameters.items() if name in found}
        self._judge(stacklevel=2)
        optimizer.step_by_id(by_id)

    def _fitting(self) -> Gradients:
        """Return the gradients; ``ArgumentError`` if a layer was replaced or converted since, so that one does not fit its parameter."""
        found = self.gradients
        shape, dtype = self.backend.arrays.shape, self.backend.arrays.dtype
        for name, tensor in self.block.parameters.items():
            if name not in found:
                continue
            gradient = found[name]
            if shape(gradient) != shape(tensor) or dtype(gradient) != dtype(tensor):
                raise ArgumentError(
                    f"the gradient of {name!r} is {dtype(gradient)} of shape {shape(gradient)}, and the parameter is now {dtype(tensor)} "
                    f"of shape {shape(tensor)}: it was replaced or converted since the backward; run forward and backward again"
                )
        return found

    def _complete(self) -> bool:
        """Whether all parameters were reached and none is frozen or still to be made, so that there is nothing to tell."""
        return len(self._uses.reached) == len(self._uses.name_of) and not self._expected and not self.block.waits

    def _judge(self, stacklevel: int) -> None:
        if self._judged or not self._parameters:
            return
        self._judged = True
        if self._on_unused == "ignore":
            return
        if self._complete():
            return
        usage.judge(self.block, self.usage, self._on_unused, self._expected, stacklevel + 1)

"""Optimizer: a native optimizer that holds state only for registered parameters, stepped by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from unigrad import optimizer_state
from unigrad.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from unigrad.losses import require_tensor
from unigrad.protocols import Backend
from unigrad.unpickled import Unpickled
from unigrad.wrapping import wrap

__all__ = ["Optimizer"]


class Optimizer(Unpickled):
    """A native optimizer made late: for the parameters registered at its first step, and later for further ones.

    Parameters
    ----------
    block
        A block, native model, or mapping, as for ``GradientCollector``.
    factory
        Callable that takes a list of native parameters and returns the native optimizer.
    schedule
        Callable that takes the native optimizer, as soon as it is made, and returns what changes its settings from step to step;
        it is then ``optimizer.schedule``, e.g. ``lambda native: torch.optim.lr_scheduler.ExponentialLR(native, 0.9)``.

    Raises
    ------
    ArgumentTypeError
        If ``factory`` is not callable, or is an optimizer already, or ``schedule`` is not callable.

    Notes
    -----
    A parameter without a gradient in a step does not move: no decay, no momentum. Clause R4.

    Examples
    --------
    >>> import numpy as np
    >>> import unigrad
    >>> from unigrad_numpy import Parameter, optim
    >>> weight = Parameter(np.array([1.0, 2.0]))
    >>> optimizer = unigrad.Optimizer({"weight": weight}, lambda parameters: optim.SGD(parameters, lr=0.1))
    >>> with unigrad.GradientCollector({"weight": weight}) as collector:
    ...     collector.backward((weight * weight).sum())
    ...     collector.apply(optimizer)
    >>> weight.numpy()
    array([0.8, 1.6])
    """

    _instead = (
        "make another for the other block and load_state(optimizer.state()), or write the whole run with save_training"
    )

    def __init__(self, block: Any, factory: Callable[..., Any], schedule: Callable[[Any], Any] | None = None) -> None:
        self.block = wrap(block)
        self.backend: Backend = self.block.backend
        if not callable(factory) or self.backend.optimizer.is_optimizer(factory):
            raise ArgumentTypeError(
                f"factory is a callable that takes the parameters and returns the optimizer, not {factory!r}; "
                "e.g. lambda parameters: SGD(parameters, lr=0.1)"
            )
        if schedule is not None and not callable(schedule):
            raise ArgumentTypeError(
                f"schedule is a callable that takes the native optimizer, not {schedule!r}; there is none before the first step"
            )
        self._factory = factory
        self._make_schedule = schedule
        self._native: Any = None
        self._schedule: Any = None
        self._served: dict[int, tuple[str, Any]] = {}
        self._dtypes: dict[int, str] = {}
        self._batches: list[list[Any]] = []

    @property
    def native(self) -> Any:
        """The native optimizer; None before the first step that has a gradient."""
        return self._native

    @property
    def schedule(self) -> Any:
        """What ``schedule`` made of the native optimizer; None before there is one."""
        return self._schedule

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the parameters that the native optimizer has been given."""
        return tuple(name for name, _ in self._present(tensor for _, tensor in self._served.values()))

    @property
    def with_state(self) -> tuple[str, ...]:
        """Names of the parameters for which the native optimizer holds state."""
        if self._native is None:
            return ()
        state_of = self.backend.optimizer.state_of
        present = self._present(tensor for _, tensor in self._served.values())
        return tuple(name for name, tensor in present if state_of(self._native, tensor))

    def _present(self, tensors: Iterable[Any]) -> list[tuple[str, Any]]:
        """Return the tensors that the block has still, with their names; others were replaced."""
        name_of = self.block.table().name_of
        return [(name_of[id(tensor)], tensor) for tensor in tensors if id(tensor) in name_of]

    def step(self, gradients: Mapping[str, Any]) -> None:
        """Do one step with gradients by name; a name that is absent does not move.

        Raises
        ------
        ArgumentError
            If a name is not the block's, or a shape or dtype is not the parameter's; nothing has moved.
        UnsupportedError
            If a parameter was converted to another dtype while its state was not; nothing has moved.
        ArgumentTypeError, BackendMismatchError
            If it is not a mapping, or a gradient is no tensor, or one of another framework.
        """
        if not isinstance(gradients, Mapping):
            raise ArgumentTypeError(
                f"step takes a mapping of names to gradients, such as collector.gradients, not a {type(gradients).__name__}"
            )
        table = self.block.table()
        shape, dtype = self.backend.arrays.shape, self.backend.arrays.dtype
        by_id: dict[int, Any] = {}
        for name, gradient in gradients.items():
            tensor = table.parameters.get(table.aliases.get(name, name))
            if tensor is None:
                raise ArgumentError(f"the block has no parameter {name!r}; it has: {', '.join(table.parameters)}")
            require_tensor(self.backend, gradient, f"the gradient of {name!r} is to be a tensor")
            if shape(gradient) != shape(tensor):
                raise ArgumentError(
                    f"the gradient of {name!r} has shape {shape(gradient)}, the parameter {shape(tensor)}"
                )
            if dtype(gradient) != dtype(tensor):
                raise ArgumentError(f"the gradient of {name!r} is {dtype(gradient)}, the parameter {dtype(tensor)}")
            by_id[id(tensor)] = gradient
        self.step_by_id(by_id)

    def step_by_id(self, gradients: Mapping[int, Any]) -> None:
        """Do one step with gradients keyed by the id of the native parameter; others do not move."""
        primitive = self.backend.optimizer
        table = self.block.table()
        own = {key: gradient for key, gradient in gradients.items() if key in table.name_of}
        if gradients and not own:
            raise ArgumentError("the optimizer serves another block: none of these gradients is of its parameters")
        self._require_dtypes(own)
        registered = set(self.block.registered)
        trainable = self.backend.block.trainable
        fresh = {
            name: tensor
            for name, tensor in table.parameters.items()
            if id(tensor) not in self._served and (id(tensor) in own or (name in registered and trainable(tensor)))
        }
        if fresh:
            if self._native is None:
                self._native, self._schedule = self._create(fresh)
            else:
                primitive.extend(self._native, fresh)
            self._served.update({id(tensor): (name, tensor) for name, tensor in fresh.items()})
            self._dtypes.update({id(tensor): self.backend.arrays.dtype(tensor) for tensor in fresh.values()})
            self._batches.append(list(fresh.values()))
        if self._native is not None and own:
            primitive.step(self._native, [(tensor, own.get(id(tensor))) for _, tensor in self._served.values()])

    def _require_dtypes(self, own: Iterable[int]) -> None:
        """Raise for a parameter that was converted while its state was not: some frameworks fail at it half-way through a step."""
        arrays = self.backend.arrays
        for key in own:
            if key not in self._served:
                continue
            name, tensor = self._served[key]
            was, now = self._dtypes[key], arrays.dtype(tensor)
            if was != now and any(
                arrays.is_tensor(value) and arrays.dtype(value) == was and arrays.shape(value) == arrays.shape(tensor)
                for value in self.backend.optimizer.state_of(self._native, tensor).values()
            ):
                raise UnsupportedError(
                    f"parameter {name!r} was converted from {was} to {now}, and what the optimizer holds for it is {was} still; nothing "
                    "was moved, make a new Optimizer"
                )

    def _create(self, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        primitive = self.backend.optimizer
        native = primitive.create(self._factory, parameters)
        if not primitive.is_optimizer(native):
            raise ArgumentTypeError(
                f"the factory returned a {type(native).__name__}, not an optimizer of {self.backend.spec.name}"
            )
        held, given = set(map(id, primitive.served(native))), set(map(id, parameters.values()))
        if not held or not held <= given:
            raise ArgumentError(
                f"the factory was given {len(given)} parameters, and its optimizer serves "
                f"{'none of them' if held.isdisjoint(given) else 'others too'}; it is to be made for those that it is given, e.g. "
                "lambda parameters: SGD(parameters, lr=0.1)"
            )
        return native, self._make_schedule(native) if self._make_schedule is not None else None

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all that further steps depend on as NumPy arrays.

        Returns
        -------
        dict
            ``parameter/key`` -> state of one parameter, ``/key`` -> what belongs to no single one (settings that a schedule
            may have changed), and under ``served`` which parameters are served.

        Raises
        ------
        UnsupportedError
            If the native optimizer holds something that is neither a tensor nor a number, or if all parameters that it was given at
            once have been replaced since.
        """
        groups = [self._present(batch) for batch in self._batches]
        if not all(groups):
            raise UnsupportedError(
                "all parameters that this optimizer was given at once have been replaced in the block since, and their settings would be "
                "lost; make a new Optimizer"
            )
        return optimizer_state.collect(self.backend, self._native, groups)

    def load_state(self, arrays: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned, all or nothing.

        The native optimizer is made anew, and the schedule with it; what the saved one had is put into it, also settings in which
        the factory differs. The state of a schedule is its own affair: load it into ``optimizer.schedule`` afterwards.

        Parameters
        ----------
        arrays
            Name -> array.

        Raises
        ------
        StateMismatchError
            If the state does not fit the block or the factory; nothing was changed.
        """
        self.prepare(arrays)()

    def prepare(self, arrays: Mapping[str, Any]) -> Callable[[], None]:
        """Check a state and make a native optimizer of it; the returned function takes it into use."""
        saved = optimizer_state.parse(arrays, self.block.table(), self.backend)
        native, schedule = None, None
        for index, batch in enumerate(saved.batches):
            if index == 0:
                native, schedule = self._create(batch)
                saved.check_kind(native)
            else:
                self.backend.optimizer.extend(native, batch)
        saved.fill(native)

        def commit() -> None:
            self._native, self._schedule = native, schedule
            self._served = {id(tensor): (name, tensor) for batch in saved.batches for name, tensor in batch.items()}
            self._dtypes = {key: self.backend.arrays.dtype(tensor) for key, (_, tensor) in self._served.items()}
            self._batches = [list(batch.values()) for batch in saved.batches]

        return commit

"""Optimizer: a native optimizer that holds state only for registered parameters, stepped by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unigrad.errors import ArgumentError, ArgumentTypeError
from unigrad.protocols import Backend
from unigrad.wrapping import wrap

__all__ = ["Optimizer"]


class Optimizer:
    """A native optimizer made late: for the parameters registered at its first step, and later for further ones.

    Parameters
    ----------
    block
        A block, native model, or mapping, as for ``GradientCollector``.
    factory
        Callable that takes a list of native parameters and returns the native optimizer.

    Raises
    ------
    ArgumentTypeError
        If ``factory`` is not callable, or is an optimizer already.

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

    def __init__(self, block: Any, factory: Callable[..., Any]) -> None:
        self.block = wrap(block)
        self.backend: Backend = self.block.backend
        if not callable(factory) or self.backend.optimizer.is_optimizer(factory):
            raise ArgumentTypeError(
                f"factory is a callable that takes the parameters and returns the optimizer, not {factory!r}; "
                "e.g. lambda parameters: SGD(parameters, lr=0.1)"
            )
        self._factory = factory
        self._native: Any = None
        self._served: dict[int, tuple[str, Any]] = {}

    @property
    def native(self) -> Any:
        """The native optimizer; None before the first step that has a gradient."""
        return self._native

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the parameters that the native optimizer has been given."""
        return tuple(name for name, _ in self._served.values())

    @property
    def with_state(self) -> tuple[str, ...]:
        """Names of the parameters for which the native optimizer holds state."""
        if self._native is None:
            return ()
        state_of = self.backend.optimizer.state_of
        return tuple(name for name, tensor in self._served.values() if state_of(self._native, tensor))

    def step(self, gradients: Mapping[str, Any]) -> None:
        """Do one step with gradients by name; a name that is absent does not move.

        Raises
        ------
        ArgumentError
            If a name is not the block's, or a shape is not the parameter's; nothing has moved.
        """
        table = self.block.table()
        shape = self.backend.block.shape
        by_id: dict[int, Any] = {}
        for name, gradient in gradients.items():
            tensor = table.parameters.get(table.aliases.get(name, name))
            if tensor is None:
                raise ArgumentError(f"the block has no parameter {name!r}; it has: {', '.join(table.parameters)}")
            if not self.backend.block.is_tensor(gradient) or shape(gradient) != shape(tensor):
                raise ArgumentError(f"the gradient of {name!r} is to be a tensor of shape {shape(tensor)}")
            by_id[id(tensor)] = gradient
        self.step_by_id(by_id)

    def step_by_id(self, gradients: Mapping[int, Any]) -> None:
        """Do one step with gradients keyed by the id of the native parameter; others do not move."""
        primitive = self.backend.optimizer
        table = self.block.table()
        own = {key: gradient for key, gradient in gradients.items() if key in table.name_of}
        if gradients and not own:
            raise ArgumentError("the optimizer serves another block: none of these gradients is of its parameters")
        registered = set(self.block.registered)
        trainable = self.backend.block.trainable
        fresh = {
            name: tensor
            for name, tensor in table.parameters.items()
            if id(tensor) not in self._served and (id(tensor) in own or (name in registered and trainable(tensor)))
        }
        if fresh:
            if self._native is None:
                native = primitive.create(self._factory, fresh)
                if not primitive.is_optimizer(native):
                    raise ArgumentTypeError(
                        f"the factory returned a {type(native).__name__}, not an optimizer of {self.backend.spec.name}"
                    )
                self._native = native
            else:
                primitive.extend(self._native, fresh)
            self._served.update({id(tensor): (name, tensor) for name, tensor in fresh.items()})
        if self._native is not None and own:
            primitive.step(self._native, [(tensor, own.get(id(tensor))) for _, tensor in self._served.values()])

"""Native optimizers: one step with given gradients, state only for what they serve.

An optimizer of MindSpore takes a gradient for each of its parameters: for a missing one it fails, or ends the process, and zeros
would move the parameter. So parameters that are stepped together have a native optimizer of their own, made by the
same factory; the first one stands for all, and its settings are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mindspore import nn
from mindspore.experimental import optim as experimental

from unigrad.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from unigrad_mindspore.arrays import equal
from unigrad_mindspore.dispatch import paused
from unigrad_mindspore.kernels import explained, settle
from unigrad_mindspore.slots import read, read_settings, settings_from, slots_of, write, write_settings
from unigrad_mindspore.tape import no_record
from unigrad_mindspore.versions import written

__all__ = ["create", "extend", "is_optimizer", "served", "set_state_of", "state_of", "step"]

_KINDS = (nn.Optimizer, experimental.Optimizer)
_SERVED = "_unigrad_served"


class _Served:
    """What stands behind the optimizer that the user sees."""

    def __init__(self, factory: Callable[..., Any], first: Any) -> None:
        self.factory = factory
        self.first = first
        self.natives: list[Any] = []
        self._memory: dict[int, list[int]] = {}
        self.add(first)

    def add(self, native: Any) -> None:
        """Take in a native optimizer that was just made."""
        self.natives.append(native)
        self._memory[id(native)] = _addresses(native)

    def reconnect(self) -> None:
        """Make those anew whose parameters were given other memory (``Parameter.set_data``): they would go on in the old one."""
        for native in list(self.natives):
            if self._memory[id(native)] != _addresses(native):
                self.regroup([native], [list(native.parameters)])

    def of(self, parameter: Any) -> Any:
        """Return the native optimizer that serves a parameter; None if none does."""
        return next((native for native in self.natives if any(parameter is one for one in native.parameters)), None)

    def regroup(self, natives: Sequence[Any], groups: Sequence[Sequence[Any]]) -> None:
        """Replace some native optimizers by one for each group of their parameters, which keep their state."""
        states = {id(one): read(native, one) for native in natives for one in native.parameters}
        self.natives = [native for native in self.natives if all(native is not old for old in natives)]
        for group in groups:
            native = _make(self.factory, list(group))
            for parameter in group:
                write(native, parameter, states[id(parameter)])
            self.add(native)


def _addresses(native: Any) -> list[int]:
    return [parameter.data_ptr() for parameter in native.parameters]


def is_optimizer(obj: object) -> bool:
    """Whether ``obj`` is an optimizer of ``mindspore.nn`` or ``mindspore.experimental``."""
    return isinstance(obj, _KINDS)


def create(factory: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    """Return the optimizer that ``factory`` makes for the list of parameters."""
    made = _make(factory, list(parameters.values()))
    object.__setattr__(made, _SERVED, _Served(factory, made))
    return made


def _make(factory: Callable[..., Any], parameters: list[Any]) -> Any:
    with _unique_names(parameters):
        made = factory(parameters)
    if type(made).__module__.startswith("mindspore.mint"):
        raise UnsupportedError(
            f"{type(made).__name__} of mindspore.mint.optim changes nothing on the CPU; use one of mindspore.nn or of "
            "mindspore.experimental.optim"
        )
    if not is_optimizer(made):
        raise ArgumentTypeError(
            f"the factory returned {type(made).__name__}, not an optimizer of mindspore; pass for example "
            "lambda parameters: nn.SGD(parameters, learning_rate=0.1)"
        )
    if sorted(map(id, made.parameters)) != sorted(map(id, parameters)):
        raise ArgumentError(
            f"the factory was given {len(parameters)} parameters, and its optimizer serves {len(made.parameters)}; it is to serve exactly "
            "those that it is given"
        )
    return made


@contextmanager
def _unique_names(parameters: Sequence[Any]) -> Iterator[None]:
    """Give parameters different names: an optimizer refuses equal ones, which two Cells may have."""
    before = [parameter.name for parameter in parameters]
    try:
        for index, parameter in enumerate(parameters):
            parameter.name = f"{index}.{parameter.name}"
        yield
    finally:
        for parameter, name in zip(parameters, before, strict=True):
            parameter.name = name


def served(optimizer: Any) -> list[Any]:
    """Return the parameters of all natives."""
    natives: list[Any] = vars(optimizer)[_SERVED].natives
    return [parameter for native in natives for parameter in native.parameters]


def extend(optimizer: Any, parameters: Mapping[str, Any]) -> None:
    """Make the optimizer serve more parameters: MindSpore's add_param_group leaves an optimizer that fails at the next step."""
    served: _Served = vars(optimizer)[_SERVED]
    served.add(_make(served.factory, list(parameters.values())))


def step(optimizer: Any, gradients: Sequence[tuple[Any, Any | None]]) -> None:
    """Do one step with the given gradients; parameters without one do not move, nor does their state."""
    served: _Served = vars(optimizer)[_SERVED]
    given = {id(parameter): gradient for parameter, gradient in gradients if gradient is not None}
    served.reconnect()
    for native in list(served.natives):
        parts = [[one for one in native.parameters if (id(one) in given) is there] for there in (True, False)]
        if all(parts):
            served.regroup([native], parts)
    stepping = [native for native in served.natives if id(native.parameters[0]) in given]
    for native in _merged(served, stepping):
        settings_from(served.first, native)
        with no_record(), paused(), explained():
            native(tuple(given[id(one)] for one in native.parameters))
            settle()
        for parameter in native.parameters:
            written(parameter)


def _merged(served: _Served, stepping: list[Any]) -> list[Any]:
    """Join native optimizers that have done the same steps, so that there are few; each costs a compilation."""
    alike: list[list[Any]] = []
    for native in stepping:
        known = next((group for group in alike if _same_steps(group[0], native)), None)
        if known is None:
            alike.append([native])
        else:
            known.append(native)
    found = []
    for group in alike:
        if len(group) > 1:
            served.regroup(group, [[one for native in group for one in native.parameters]])
            found.append(served.natives[-1])
        else:
            found += group
    return found


def _same_steps(left: Any, right: Any) -> bool:
    a, b = slots_of(left).shared, slots_of(right).shared
    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)


def state_of(optimizer: Any, parameter: Any) -> Mapping[str, Any]:
    """Return copies of the state that the optimizer holds for one parameter; for None the numbers among its settings."""
    if parameter is None:
        return read_settings(optimizer)
    native = vars(optimizer)[_SERVED].of(parameter)
    return {} if native is None else read(native, parameter)


def set_state_of(optimizer: Any, parameter: Any, state: Mapping[str, Any]) -> None:
    """Put back what ``state_of`` returned, arrays or tensors."""
    if parameter is None:
        write_settings(optimizer, state)
        return
    served: _Served = vars(optimizer)[_SERVED]
    native = served.of(parameter)
    others = [one for one in native.parameters if one is not parameter]
    shared = slots_of(native).shared
    if others and any(
        not np.array_equal(shared[name].asnumpy(), np.asarray(state[name])) for name in shared if name in state
    ):
        served.regroup([native], [[parameter], others])  # it has done other steps than these
    write(served.of(parameter), parameter, state)

"""DistributedDataParallel: which wrapper averages a parameter's gradient, what of it cannot be served, whether it has averaged.

A wrapper hangs its work on the parameters where Python cannot see it, so a model inside one looks like any other. All wrappers
are therefore kept in view from their making, weakly.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn
from weakref import WeakSet

from torch import distributed
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from unigrad.errors import UnreducedError, UnsupportedError

_PRIVATE = ("get_backward_stats", "_check_reducer_finalized", "_reset_state")
_wrappers: WeakSet[Any] = WeakSet()
_generation = [0]


def note(module: Any) -> None:
    """Keep a wrapper in view; nothing for any other module."""
    if isinstance(module, DistributedDataParallel) and module not in _wrappers:
        _wrappers.add(module)
        _generation[0] += 1


def _on_registration(module: Any, name: str, child: Any) -> None:
    note(module)


register_module_module_registration_hook(_on_registration)


def search() -> None:
    """Find wrappers that were copied, loaded, or made before this module was imported."""
    if distributed.is_available() and distributed.is_initialized():
        for obj in gc.get_objects():
            if issubclass(type(obj), DistributedDataParallel):
                note(obj)


def generation() -> int:
    """Return a number that grows with each wrapper found."""
    return _generation[0]


def wrappers_of(parameters: Iterable[Any]) -> list[Any]:
    """Return the living wrappers that average the gradient of one of the parameters."""
    if not _wrappers:
        return []
    wanted = set(map(id, parameters))
    return [
        wrapper
        for wrapper in list(_wrappers)
        if hasattr(wrapper, "reducer") and any(id(parameter) in wanted for parameter in wrapper._module_parameters)
    ]


def check(wrapper: Any) -> None:
    """Raise ``UnsupportedError`` for a wrapper whose gradients could not be taken, or would not be averaged."""
    missing = [name for name in _PRIVATE if not hasattr(distributed.Reducer, name)]
    if missing:
        raise UnsupportedError(
            f"this torch has no Reducer.{missing[0]}, by which it is told whether DistributedDataParallel has averaged; unigrad was tested "
            "with the version in its constraints.txt"
        )
    if wrapper._use_python_reducer:
        _refuse("with the reducer of the compiler", "whose averaging cannot be told from the outside")
    if wrapper.mixed_precision is not None:
        _refuse("with mixed_precision=", "which exchanges the parameters by others; use autocast")
    if wrapper._delay_all_reduce_params:
        _refuse("with delayed parameters", "which it averages in memory of its own")
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in wrapper._module_parameters):
        _refuse("with optimizers in backward", "which take the averaged gradients before anyone else sees them")
    known = {id(parameter) for parameter in wrapper._module_parameters}
    ignored = wrapper.parameters_to_ignore
    for name, parameter in wrapper.module.named_parameters():
        if name not in ignored and id(parameter) not in known:
            _refuse(f"whose parameter {name!r} is not the one it was made with", "so that it would not be averaged")


def _refuse(what: str, why: str) -> NoReturn:
    raise UnsupportedError(
        f"the model is in a DistributedDataParallel {what}, {why}; wrap the model anew, without that"
    )


def left_over(reductions: Sequence[Reduction]) -> set[int]:
    """Return the ids of parameters that no wrapper has averaged, as all of them are under ``no_sync()``.

    ``UnreducedError`` if one of them should have been averaged. A model that was wrapped anew has two wrappers as long as the first one
    lives; the one that ran the forward averages.
    """
    idle = [reduction for reduction in reductions if not reduction.averaged()]
    averaged = {
        id(parameter) for reduction in reductions if reduction not in idle for parameter in reduction.parameters
    }
    left: set[int] = set()
    for reduction in idle:
        own = set(map(id, reduction.parameters)) - averaged
        if own and reduction.synchronizes:
            raise UnreducedError(
                "DistributedDataParallel did not average these gradients: it does so once for each forward, in the first "
                "backward after it, and not for a forward under no_sync(). Add the losses up and give them to one backward, or run "
                "the forward again"
            )
        left |= own
    return left


class Reduction:
    """What one wrapper does in one backward."""

    __slots__ = ("_before", "_delayed", "parameters", "synchronizes", "wrapper")

    def __init__(self, wrapper: Any) -> None:
        self.wrapper = wrapper
        self.parameters = [parameter for parameter in wrapper._module_parameters if parameter.requires_grad]
        """Those whose gradients the wrapper averages."""
        self.synchronizes = bool(wrapper.require_backward_grad_sync)
        # times at which the gradients became ready: they move if, and only if, the wrapper takes part in a backward
        self._before = wrapper.reducer.get_backward_stats()
        self._delayed = wrapper.static_graph and not wrapper._static_graph_delay_allreduce_enqueued

    def require_all(self, reached: set[int] | None) -> None:
        """Raise, before anything runs, for parameters that the wrapper does not know, or without which it does not finish.

        ``reached`` is None where that cannot be told from the graph.
        """
        wrapper = self.wrapper
        if len(self._before) < len(self.parameters):
            _refuse("some of whose parameters were frozen when it was made", "so that these would not be averaged")
        if reached is None:
            return
        if not self.synchronizes or wrapper.find_unused_parameters or wrapper.static_graph:
            return
        if not reached.issuperset(map(id, self.parameters)):
            missing = [
                name
                for name, parameter in wrapper.module.named_parameters()
                if id(parameter) in set(map(id, self.parameters)) - reached
            ]
            raise UnreducedError(
                f"the loss does not depend on {', '.join(missing)}, so DistributedDataParallel would wait for them and leave others "
                "unaveraged; make it with find_unused_parameters=True, or freeze them before"
            )

    def averaged(self) -> bool:
        """Whether the wrapper averaged the gradients; ``UnreducedError`` if it began and did not finish."""
        wrapper = self.wrapper
        first = self._delayed and wrapper._static_graph_delay_allreduce_enqueued
        if first or wrapper.reducer.get_backward_stats() != self._before:
            try:
                wrapper.reducer._check_reducer_finalized()
            except RuntimeError as error:
                raise UnreducedError(
                    "DistributedDataParallel did not average all gradients, as some parameters got none; make it with "
                    "find_unused_parameters=True"
                ) from error
            return True
        return False

    def abandon(self) -> None:
        """Make the wrapper ready for the next forward after a backward that broke off."""
        self.wrapper.reducer._reset_state()

"""Parameters spread over processes: DTensor, and fully_shard, whose graphs hold whole twins of the parameters.

While a module of fully_shard runs, a whole twin stands in the place of each sharded parameter. Graphs end at the twins, and a backward puts
the reduced gradient into ``.grad`` of the sharded parameter. Names, slots and results belong to the latter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from unigrad import tree
from unigrad.errors import StaleGraphError, UnsupportedError

_VERSIONS = "unigrad.versions"


def is_sharded(tensor: Any) -> bool:
    """Whether the tensor is a DTensor."""
    # looked up, not imported, here and below: before the import there is none
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def is_fully_sharded(module: Any) -> bool:
    """Whether the module was given to fully_shard."""
    fully_shard = sys.modules.get("torch.distributed.fsdp._fully_shard._fully_shard")
    return fully_shard is not None and isinstance(module, fully_shard.FSDPModule)


def require_known(module: Any) -> None:
    """Raise ``UnsupportedError`` if the state of a module given to fully_shard is not built as in the versions that were tested."""
    state = module._get_fsdp_state()
    context = getattr(state, "_state_ctx", None)
    known = sys.modules["torch.distributed._composable_state"]
    for owner, names in (
        (known, ("_module_state_mapping",)),
        (state, ("_fsdp_param_groups", "_is_root", "_modules", "_reset_iter_state")),
        (context, ("all_states", "is_last_backward")),
        *((group, ("fsdp_params", "reduce_grads", "all_reduce_grads")) for group in state._fsdp_param_groups),
    ):
        for name in names:
            if not hasattr(owner, name):
                raise UnsupportedError(
                    f"the state of fully_shard in this torch has no {name}, which is needed to find its parameters; unigrad was tested "
                    "with the version in its constraints.txt"
                )


def whole(tensor: Any) -> Any:
    """Return the values of all processes, which all must ask for, of a DTensor; else the tensor."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def spread(values: Tensor, like: Any) -> Any:
    """Return this process's part of values that every process has, spread as ``like`` is."""
    distributed = sys.modules["torch.distributed.tensor"]
    return distributed.distribute_tensor(values.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def _states() -> list[Any]:
    """Return the states of all living modules given to fully_shard."""
    if "torch.distributed.fsdp._fully_shard._fully_shard" not in sys.modules:
        return []
    known = sys.modules["torch.distributed._composable_state"]._module_state_mapping
    if not known:
        return []
    found = [reference() for reference in list(known.values())]
    states = {id(state): state for state in found if hasattr(state, "_fsdp_param_groups")}
    return list(states.values())


def _parameters(states: Iterable[Any]) -> list[Any]:
    return [parameter for state in states for group in state._fsdp_param_groups for parameter in group.fsdp_params]


def twins() -> dict[int, Any]:
    """Return the sharded parameter for the id of each whole twin that exists."""
    return {
        id(parameter._unsharded_param): parameter.sharded_param
        for parameter in _parameters(_states())
        if hasattr(parameter, "_unsharded_param")
    }


def forget_twin(tensor: Any) -> None:
    """Drop the whole twin of a parameter that is about to be written, so that the next forward fetches the new values."""
    for state in _states():
        for group in state._fsdp_param_groups:
            if any(parameter.sharded_param is tensor for parameter in group.fsdp_params):
                group.reshard()


def originals(leaves: Sequence[Any]) -> Sequence[Any]:
    """Return the leaves with whole twins replaced by the sharded parameters that they stand for."""
    known = twins()
    return [known.get(id(leaf), leaf) for leaf in leaves] if known else leaves


class Shards:
    """The modules of fully_shard that hold some parameters, with all that belong to the same roots."""

    __slots__ = ("_parameters", "_states")

    def __init__(self, leaves: Sequence[Any]) -> None:
        wanted = set(map(id, leaves))
        concerned: dict[int, Any] = {}
        for state in _states():
            if any(id(parameter.sharded_param) in wanted for parameter in _parameters([state])):
                concerned |= {id(other): other for other in (state, *state._state_ctx.all_states)}
        self._states = list(concerned.values())
        self._parameters = _parameters(self._states)

    def __bool__(self) -> bool:
        return bool(self._states)

    def leaves(self) -> list[Any]:
        """Return all sharded parameters, whose ``.grad`` a backward writes."""
        return [parameter.sharded_param for parameter in self._parameters]

    def check(self) -> None:
        """Raise ``UnsupportedError`` for settings under which gradients would stay unreduced or unfinished."""
        for state in self._states:
            if not state._state_ctx.is_last_backward:
                _refuse("set_is_last_backward(False)", "gradients would be read before they are there")
            if not all(group.reduce_grads and group.all_reduce_grads for group in state._fsdp_param_groups):
                _refuse("set_requires_gradient_sync(False)", "gradients would stay unreduced")
        for parameter in self._parameters:
            twin = getattr(parameter, "_unsharded_param", None)
            if parameter.unsharded_accumulated_grad is not None or (twin is not None and twin.grad is not None):
                raise UnsupportedError(
                    "a parameter of fully_shard holds an unreduced gradient of an earlier backward, which would be added to this one; "
                    "finish that accumulation, or call reset_iter_state() on the model"
                )

    def abandon(self) -> None:
        """Make the modules ready for the next forward after a backward that broke off."""
        for state in self._states:
            if state._is_root:
                state._reset_iter_state()
        for parameter in self._parameters:
            parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None

    def watch(self) -> list[Callable[[], None]]:
        """Have each forward note the versions of its parameters in the graph; return the undo.

        A backward fetches the parameters anew, so that a change in between would be used as if it had been there in the forward.
        """

        def note(state: Any) -> Callable[[Module, Any, Any], None]:
            def after(module: Module, args: Any, outputs: Any) -> None:
                nodes = [leaf.grad_fn for leaf in tree.flatten(outputs)[0] if isinstance(leaf, Tensor)]
                for node in nodes:
                    if node is not None:
                        node.metadata.setdefault(_VERSIONS, []).append((state, _versions(state)))

            return after

        return [module.register_forward_hook(note(state)).remove for state in self._states for module in state._modules]


def _versions(state: Any) -> list[int]:
    return [parameter.sharded_param._version for parameter in _parameters([state])]


def require_fresh(nodes: Sequence[Any]) -> None:
    """Raise ``StaleGraphError`` if a sharded parameter was changed since a forward that noted its version."""
    for node in nodes:
        for state, versions in node.metadata.get(_VERSIONS, ()):
            if _versions(state) != versions:
                raise StaleGraphError(
                    "a parameter of fully_shard was changed in place after the forward; run the forward again after the change"
                )


def _refuse(what: str, why: str) -> None:
    raise UnsupportedError(
        f"fully_shard with {what}: {why}. Leave it on; accumulate='add' sums over several backward calls"
    )

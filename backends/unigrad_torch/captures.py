"""What a checkpointed function brings into its graph that is no argument: captured tensors, parameters made inside."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules.module import register_module_parameter_registration_hook

from unigrad.errors import CapturedTensorError

Edge = tuple[Any, int]


def edges(tensors: Sequence[Any]) -> set[Edge]:
    """Return the places in the graph at which the tensors enter it."""
    return {(tensor.grad_fn, tensor.output_nr) for tensor in tensors if tensor.grad_fn is not None}


def reached(outputs: Sequence[Tensor], border: set[Edge], since: int | None) -> tuple[list[Tensor], Edge | None]:
    """Walk from the outputs down to the border.

    Parameters
    ----------
    outputs
        Tensors that the function returned.
    border
        Edges of its arguments, at which the walk ends.
    since
        Sequence number of this thread at the beginning of the function; None looks for no captured tensor.

    Returns
    -------
    tuple
        The leaves, and the edge of a captured tensor, None if there is none.
    """
    leaves: list[Tensor] = []
    stack: list[Any] = []
    seen: set[Any] = set()
    for output in outputs:
        edge = (output.grad_fn, output.output_nr)
        if edge[0] is not None and edge not in border and edge[0] not in seen:
            if since is not None and edge[0]._sequence_nr() < since:
                return leaves, edge
            seen.add(edge[0])
            stack.append(edge[0])
    while stack:
        node = stack.pop()
        for edge in node.next_functions:
            below = edge[0]
            if below is None or below in seen or edge in border:
                continue
            leaf = getattr(below, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
            elif since is not None and below._sequence_nr() < since and not _is_cast_weight(below):
                return leaves, edge
            else:
                stack.append(below)
            seen.add(below)
    return leaves, None


def _is_cast_weight(node: Any) -> bool:
    """Whether the node is the half-precision copy of a leaf that autocast made before and keeps in its cache."""
    below = node.next_functions
    return node.name() == "ToCopyBackward0" and len(below) == 1 and getattr(below[0][0], "variable", None) is not None


def refuse(function: Any, edge: Edge) -> None:
    """Raise ``CapturedTensorError`` that names the captured tensor by its variable, else by its operation."""
    name = next((name for name, tensor in _reachable(function) if (tensor.grad_fn, tensor.output_nr) == edge), None)
    node, number = edge
    shape = _shape(node, number)
    what = f"{name!r}, " if name else "a tensor "
    raise CapturedTensorError(
        f"{what}made by {node.name()}{shape} before the checkpointed function began, is used in it without being an argument; "
        "pass it as an argument, or compute it inside"
    )


def _shape(node: Any, number: int) -> str:
    try:
        metadata = node._input_metadata[number]
        return f" with shape {tuple(metadata.shape)}"
    except (AttributeError, IndexError):
        return ""


def _reachable(function: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with a graph that a function can see, each with the expression by which it does."""
    stack: list[tuple[str, Any, int]] = [("", function, 0)]
    seen: set[int] = set()
    while stack:
        name, value, depth = stack.pop()
        if id(value) in seen or depth > 6:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.grad_fn is not None:
                yield name, value
            continue
        if isinstance(value, Module):
            found = list(vars(value).items()) + [(key, child) for key, child in value.named_children()]
            stack += [(f"{name}.{key}".lstrip("."), child, depth + 1) for key, child in found]
        elif isinstance(value, dict):
            stack += [(f"{name}[{key!r}]", child, depth + 1) for key, child in value.items()]
        elif isinstance(value, (list, tuple)):
            stack += [(f"{name}[{index}]", child, depth + 1) for index, child in enumerate(value)]
        elif isinstance(value, functools.partial):
            stack += [(name, child, depth + 1) for child in (value.func, value.args, value.keywords)]
        elif callable(value):
            stack += [(key, child, depth + 1) for key, child in _seen_by(value)]


def _seen_by(function: Any) -> list[tuple[str, Any]]:
    found = [("self", getattr(function, "__self__", None)), ("", getattr(function, "__wrapped__", None))]
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
            try:
                found.append((name, cell.cell_contents))
            except ValueError:  # not assigned yet
                continue
        found += [(name, plain.__globals__[name]) for name in code.co_names if name in plain.__globals__]
        found += [("", value) for value in (plain.__defaults__ or ())]
    elif hasattr(function, "__dict__"):
        found += [(f"self.{name}", value) for name, value in vars(function).items()]
    return found


class _Listeners(threading.local):
    def __init__(self) -> None:
        self.lists: list[list[tuple[str, Parameter]]] = []


_listeners = _Listeners()
_lock = threading.Lock()
_hook: dict[str, Any] = {"users": 0, "handle": None}


def _on_registration(module: Any, name: str, parameter: Any) -> None:
    for found in _listeners.lists:
        found.append((f"{type(module).__name__}.{name}", parameter))


@contextmanager
def registrations() -> Iterator[list[tuple[str, Parameter]]]:
    """Collect the parameters that this thread registers in a module, with their names.

    torch calls such a hook in every thread; it is there only while some region runs.
    """
    with _lock:
        if not _hook["users"]:
            _hook["handle"] = register_module_parameter_registration_hook(_on_registration)
        _hook["users"] += 1
    found: list[tuple[str, Parameter]] = []
    _listeners.lists.append(found)
    try:
        yield found
    finally:
        _listeners.lists[:] = [other for other in _listeners.lists if other is not found]
        with _lock:
            _hook["users"] -= 1
            if not _hook["users"]:
                _hook["handle"].remove()


def sequence_number() -> int:
    """Return the number that the next node recorded in this thread gets."""
    return torch._C._autograd._get_sequence_nr()

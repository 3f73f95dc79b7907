"""What a checkpointed function brings into its graph that is no argument: captured tensors, and the leaves it uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Parameter, Tensor

from unigrad.captures import name_in
from unigrad.errors import CapturedTensorError

__all__ = ["border_of", "reached", "refuse"]

Place = tuple[int, int]
"""Number of a node and of one of its outputs."""


def border_of(tensors: Sequence[Any]) -> dict[Place, Any]:
    """Return the places at which the tensors enter the graph, each with its node, which keeps the number from use by another."""
    return {
        (node._unique_id(), tensor._output_index): node
        for tensor in tensors
        if tensor._requires_grad and (node := tensor._grad_node) is not None
    }


def reached(outputs: Sequence[Any], border: dict[Place, Any], since: int | None) -> tuple[dict[int, Any], Any | None]:
    """Walk from the outputs down to the border.

    Parameters
    ----------
    outputs
        Tensors that the function returned.
    border
        Places of its arguments, at which the walk ends.
    since
        Number of the first operation of the function; None looks for no captured tensor.

    Returns
    -------
    tuple
        Nodes of leaves by their number, and a pair of node and output of a captured tensor, None if there is none.
    """
    leaves: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [(output._grad_node, output._output_index) for output in outputs]
    while waiting:
        node, index = waiting.pop()
        number = node._unique_id()
        if (number, index) in border or number in seen:
            continue
        seen.add(number)
        if node.is_leaf():
            leaves[number] = node
        elif since is not None and node._sequence_nr() < since:
            return leaves, (node, index)
        else:
            waiting += [(below, place) for below, place in node.next_functions if below is not None]
    return leaves, None


def refuse(function: Any, captured: tuple[Any, int]) -> None:
    """Raise ``CapturedTensorError`` that names the captured tensor by its variable, else by its operation."""
    node, index = captured
    number = node._unique_id()

    def is_it(value: Any) -> bool:
        if not isinstance(value, Tensor) or isinstance(value, Parameter) or value._grad_node is None:
            return False
        return bool(value._grad_node._unique_id() == number and value._output_index == index)

    name = name_in(function, is_it)
    what = f"{name!r}, " if name else "a tensor "
    raise CapturedTensorError(
        f"{what}made by {node.name()} before the checkpointed function began, is used in it without being an argument; "
        "pass it as an argument, or compute it inside"
    )

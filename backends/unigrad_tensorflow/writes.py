"""Which operations write variables, and whether a traced function writes one between two readings."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from unigrad_tensorflow.private import changed_inputs

__all__ = ["is_changing", "reading", "same_reading", "written_inputs"]

CHANGING = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "AssignVariableOp",
        "ResourceStridedSliceAssign",
        "RngReadAndSkip",
        "RngSkip",
    }
)
"""Operations that write the variable that is their first input."""

_functions: dict[str, list[int]] = {}


def is_changing(operation: str) -> bool:
    """Whether an operation writes the variable that is its first input."""
    return operation in CHANGING or operation.startswith("ResourceScatter")


def written_inputs(name: str) -> list[int]:
    """Return which inputs of a traced function are variables that it writes."""
    if name not in _functions:
        _functions[name] = changed_inputs(name, is_changing)
    return _functions[name]


def same_reading(left: Any, right: Any) -> bool:
    """Whether two tensors of a function that is being traced are readings of one variable that nothing writes in between."""
    one, other = reading(left), reading(right)
    if one is None or other is None or one.inputs[0] is not other.inputs[0]:
        return False
    handle = one.inputs[0]
    writing = [
        operation for operation in handle.consumers() if any(handle is written for written in _written(operation))
    ]
    if not writing or one is other:
        return True
    place = {id(operation): number for number, operation in enumerate(one.graph.get_operations())}
    first, last = sorted((place[id(one)], place[id(other)]))
    return not any(first < place[id(operation)] < last for operation in writing)


def reading(tensor: Any) -> Any:
    """Return the operation that read a variable, None if the tensor is something else."""
    while tf.is_symbolic_tensor(tensor):
        if tensor.op.type == "ReadVariableOp":
            return tensor.op
        if tensor.op.type != "Identity":
            return None
        tensor = tensor.op.inputs[0]
    return None


def _written(operation: Any) -> list[Any]:
    """Return the variables that an operation of a graph writes."""
    if is_changing(operation.type):
        return [operation.inputs[0]]
    functions = [value.name for value in _functions_of(operation)]
    first = 1 if operation.type in ("Case", "If", "StatelessCase", "StatelessIf") else 0  # which branch
    return [operation.inputs[first + index] for name in functions for index in written_inputs(name)]


def _functions_of(operation: Any) -> list[Any]:
    definition = operation.node_def.attr
    found = []
    for value in definition.values():
        found += [inner for inner in (value.func, *value.list.func) if inner.name]
    return found

"""Which inputs of a compiled function the used ones among its outputs depend on.

torch makes one node of everything that it compiled. Followed as it is, a parameter of a head whose output no loss uses looks reached, and
gets zeros instead of nothing. The backward that torch has traced for the node says which gradient depends on which output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from unigrad.errors import UnsupportedError

__all__ = ["follow", "is_compiled"]

_NAME = "CompiledFunctionBackward"
_OWN_OUTPUTS = ("non_alias", "unsafe_view_alias", "custom_function_view")

_known: WeakKeyDictionary[type, tuple[list[int], list[frozenset[int] | None] | None]] = WeakKeyDictionary()
"""Forward class -> outputs that have cotangents; and for each input the outputs on which its gradient depends, None for all."""


def is_compiled(kind: type) -> bool:
    """Whether nodes of this type are compiled functions."""
    return kind.__name__ == _NAME


def follow(losses: Sequence[tuple[Any, int]]) -> list[Any]:
    """Return the leaves below some nodes, of which the given outputs are used, each once, in the order of a walk.

    Raises
    ------
    UnsupportedError
        If only some outputs of a compiled function are used and torch does not say what they depend on.
    """
    used: dict[Any, set[int]] = {}
    followed: dict[Any, set[int]] = {}
    waiting = list(losses)
    leaves: dict[Any, Any] = {}
    partly: set[Any] = set()
    for node, output in waiting:  # which grows meanwhile
        if not node.next_functions:
            if hasattr(node, "variable"):
                leaves[node] = node.variable
            continue
        if not is_compiled(type(node)):
            if node not in followed:
                followed[node] = set()
                waiting += [(below, number) for below, number in node.next_functions if below is not None]
            continue
        outputs = used.setdefault(node, set())
        if output in outputs:
            continue
        outputs.add(output)
        done = followed.setdefault(node, set())
        _, depends = _described(node)
        if depends is None:
            partly.add(node)
        for place, (below, number) in enumerate(node.next_functions):
            if below is None or place in done:
                continue
            needed = depends[place] if depends is not None else None
            if needed is None or needed & outputs:
                done.add(place)
                waiting.append((below, number))
    for node in partly:
        if not used[node].issuperset(_described(node)[0]):
            raise UnsupportedError(
                "the loss uses only some outputs of a compiled function, and this version of torch does not say on which parameters "
                "these depend; return only what the loss uses from what is compiled, or compile its parts"
            )
    return list(leaves.values())


def _described(node: Any) -> tuple[list[int], list[frozenset[int] | None] | None]:
    made = node._forward_cls
    found = _known.get(made)
    if found is None:
        found = _known[made] = _read(node, made)
    return found


def _read(node: Any, made: Any) -> tuple[list[int], list[frozenset[int] | None] | None]:
    """Read what torch keeps with a compiled function; it has no public form."""
    places = [0, 1]  # unknown as yet: nothing counts as wholly used
    try:
        places = list(range(len(node._input_metadata)))
        places = _places(made.metadata)
        depends = _depends(_backward_graph(made._lazy_backward_info), places)
        needed = node.needs_input_grad
    except (AttributeError, TypeError, ValueError):
        return places, None
    edges = [place for place, (below, _) in enumerate(node.next_functions) if below is not None]
    inputs = [number for number, wanted in enumerate(needed) if wanted]
    if len(depends) != len(needed) or len(edges) != len(inputs):
        return places, None
    by_place: list[frozenset[int] | None] = [None] * len(node.next_functions)
    for place, number in zip(edges, inputs, strict=True):
        by_place[place] = depends[number]
    return places, by_place


def _places(metadata: Any) -> list[int]:
    """Return the outputs that have cotangents, in the order of these: changed inputs, outputs, bases of views among them."""
    changed = [metadata.input_info[index] for index in metadata.mutated_inp_runtime_indices]
    places = [place for place, info in enumerate(changed) if info.mutates_data and info.requires_grad]
    places += [
        len(changed) + place
        for place, info in enumerate(metadata.output_info)
        if info.output_type.name in _OWN_OUTPUTS and info.requires_grad and issubclass(info.raw_type, Tensor)
    ]
    first_base = len(changed) + len(metadata.output_info)
    return places + list(range(first_base, first_base + metadata.num_intermediate_bases))


def _backward_graph(information: Any) -> Any:
    # from torch's cache comes a function that reads the graph
    module = information.bw_module if hasattr(information, "bw_module") else information.bw_module_fn()
    return module.graph


def _depends(graph: Any, places: Sequence[int]) -> list[frozenset[int] | None]:
    """Return for each result of a traced backward the outputs on whose cotangents it depends; None for a result of no cotangent."""
    reach: dict[Any, frozenset[int]] = {}
    cotangents = [node for node in graph.nodes if node.op == "placeholder" and node.name.startswith("tangents_")]
    for node, place in zip(cotangents, places, strict=True):
        reach[node] = frozenset([place])
    results: Sequence[Any] = ()
    for node in graph.nodes:
        if node.op == "output":
            results = node.args[0]
        elif node not in reach:
            reach[node] = frozenset().union(*(reach[below] for below in node.all_input_nodes))
    return [reach.get(result) or None if result is not None else None for result in results]

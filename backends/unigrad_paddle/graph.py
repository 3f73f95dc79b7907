"""The recorded graph below some losses: its nodes and leaves, and what Paddle's engine can't run.

Paddle's nodes tell their name and what is below them, no more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from unigrad.errors import GraphReleasedError, NoGraphError, UnsupportedError
from unigrad_paddle.arrays import is_floating
from unigrad_paddle.framework import is_leaf_node, node_of
from unigrad_paddle.leaves import is_known, leaf_of
from unigrad_paddle.marks import RELEASED
from unigrad_paddle.pylayers import PREFIX, first_nested, first_spent
from unigrad_paddle.stand_ins import original
from unigrad_paddle.usage import current

__all__ = ["Graph", "refuse_fatal", "trace", "walk"]

_REENTRANT = "GradNodePyLayer_RecomputeFunction"
_ONCE = (PREFIX, "Dy2StGradNode")
_WANTS_INPUT = {"PreluGradNode": "PReLU", "InstanceNormGradNode": "InstanceNorm"}
"""Nodes whose kernels write the gradient of their input whether or not it is wanted: one ends the process, the other fails."""


class Graph:
    """The recorded graph below some losses.

    Parameters
    ----------
    losses
        The losses.
    nodes
        All nodes but those of leaves.
    ends
        The nodes of leaves.
    once
        Nodes that Paddle can run only once.
    released
        Name of a released node.
    """

    __slots__ = ("ends", "losses", "nodes", "once", "released")

    def __init__(
        self, losses: list[Any], nodes: list[Any], ends: list[Any], once: list[Any], released: str | None
    ) -> None:
        self.losses = losses
        self.nodes = nodes
        self.ends = ends
        self.once = once
        self.released = released

    @property
    def leaves(self) -> list[Any]:
        """The leaf tensors; of one that is not known, its node. A stand-in of a recompute is what it stands for."""
        region = current()
        found = []
        for node in self.ends:
            leaf = leaf_of(node)
            if leaf is not None:
                found.append(original(leaf))
            else:
                found.append(node if region is None else region.keep(node))
        return found


def trace(losses: Sequence[Any]) -> Graph:
    """Walk the graph below the losses; changes nothing."""
    found = []
    for loss in losses:
        node = None if loss.stop_gradient or not (is_floating(loss) or loss.is_complex()) else node_of(loss)
        if node is None:
            raise NoGraphError
        found.append(node)
    nodes, ends = walk(found)
    names = [node.name() for node in nodes]
    refuse_fatal(nodes, names)
    once = [node for node, name in zip(nodes, names, strict=True) if name.startswith(_ONCE)]
    released = RELEASED.first(nodes)
    spent = first_spent(once) if released is None else None
    if spent is not None:
        raise GraphReleasedError(
            f"{spent.name()} in the graph of this loss was run by a backward outside of a collector, and Paddle can run it only once, "
            "retained or not; run the forward again"
        )
    return Graph(list(losses), nodes, ends, once, None if released is None else str(released.name()))


def walk(roots: Sequence[Any], border: Collection[Any] = ()) -> tuple[list[Any], list[Any]]:
    """Return all nodes below and including some, and apart from them those of leaves and of the border, each once."""
    nodes = list(dict.fromkeys(roots))
    seen = set(nodes)
    inner = []
    ends = []
    for node in nodes:  # which grows meanwhile
        if node in border or is_known(node):
            ends.append(node)
            continue
        leaf = True
        for below in node.next_functions:
            if below is not None:
                leaf = False
                if below not in seen:
                    seen.add(below)
                    nodes.append(below)
        if leaf and is_leaf_node(node):
            ends.append(node)
        else:
            inner.append(node)
    return inner, ends


def refuse_fatal(nodes: Sequence[Any], names: Sequence[str]) -> None:
    """Raise ``UnsupportedError`` for a node at which Paddle 3.3.1 would end the process, fail without saying why, or lose gradients."""
    if _REENTRANT in names:
        raise UnsupportedError(
            "the graph holds a reentrant paddle.distributed.fleet.utils.recompute, whose inner parameters cannot be seen and get no "
            "gradient here; use unigrad.checkpoint, or pass use_reentrant=False to it"
        )
    for kind, layer in _WANTS_INPUT.items():
        if kind in names:
            for node, name in zip(nodes, names, strict=True):
                if name == kind and node.next_functions[0] is None:
                    raise UnsupportedError(
                        f"a {layer} has an input that needs no gradient, for which Paddle's kernel can't run backward (it would end the "
                        "process); watch the input, or set x.stop_gradient = False on a detached copy of it"
                    )
    nested = first_nested([node for node, name in zip(nodes, names, strict=True) if name.startswith(PREFIX)])
    if nested is not None:
        raise UnsupportedError(
            f"{nested.name()} has outputs inside of lists, at which Paddle's engine ends the process unless each of them gets a gradient; "
            "let the PyLayer return a flat tuple of tensors"
        )

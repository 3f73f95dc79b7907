"""One checkpointed call: its nodes ask it for the pull that they had, and it runs the function again for all of them."""

from __future__ import annotations

from typing import Any

from toygrad import Node, Parameter, Tensor, moment, state

from unigrad import tree
from unigrad.captures import name_in
from unigrad.errors import CapturedTensorError, CreatedParameterError, RecomputeMismatchError, StaleGraphError
from unigrad.protocols import Region


class Call:
    """One call of a region.

    Parameters
    ----------
    region
        As the core hands it over.
    """

    def __init__(self, region: Region) -> None:
        self._region = region
        self._leaves, self._layout = tree.flatten((region.args, region.kwargs))
        # Containers of its own: the function or its caller may change those that were given.
        self._like = tree.unflatten(self._layout, [None] * len(self._leaves), (region.args, region.kwargs))
        tensors = [x for x in self._leaves if isinstance(x, Tensor)]
        self._memories = [(x.memory, x.memory.writes) for x in tensors]
        self._given = {id(x.source) for x in tensors}
        self._start = moment()
        self._nodes: list[Node] = []
        self._count = -1

    def forward(self) -> Any:
        """Run the function, then take from the nodes that it has recorded what their pulls hold."""
        region = self._region
        with state.changed(node_hooks=(*state.node_hooks, self._record)):
            outputs = region.function(*region.args, **region.kwargs)
        region.finish(outputs)
        nodes, self._nodes = self._nodes, []
        self._count = len(nodes)
        for place, node in enumerate(nodes):
            if not node.released:
                node.pull, node.reads = self._asking(place), ()
        return outputs

    def _record(self, node: Node, inputs: tuple[Tensor, ...]) -> None:
        self._nodes.append(node)
        for x in inputs:
            if x.node is not None and x.node.serial < self._start and id(x.node) not in self._given:
                name = name_in(self._region.function, lambda value, x=x: value is x)
                what = repr(name) if name else f"of shape {x.shape}"
                raise CapturedTensorError(
                    f"the tensor {what} is the result of an operation outside of a checkpointed region and is used inside; "
                    "make it an argument, or detach it"
                )

    def _asking(self, place: int) -> Any:
        return lambda cotangent: self._pull(place, cotangent)

    def _pull(self, place: int, cotangent: Any) -> Any:
        made = state.shared
        nodes = made.get(self)
        if nodes is None or nodes[place] is None:
            nodes = made[self] = self._again()
        node, nodes[place] = nodes[place], None
        return node.pull(cotangent)

    def _again(self) -> list[Node | None]:
        if any(memory.writes != writes for memory, writes in self._memories):
            raise StaleGraphError(
                "an argument of a checkpointed region was overwritten after the forward; run it again"
            )
        nodes: list[Node | None] = []
        start = moment()
        leaves = {id(x): self._stand_in(x) for x in self._leaves if isinstance(x, Tensor)}
        args, kwargs = tree.unflatten(self._layout, [leaves.get(id(x), x) for x in self._leaves], self._like)

        def take(node: Node, inputs: tuple[Tensor, ...]) -> None:
            nodes.append(node)
            for x in inputs:
                if isinstance(x, Parameter) and x.serial > start:
                    raise CreatedParameterError(
                        f"a checkpointed region creates a parameter of shape {x.shape} on each call; create it once, outside"
                    )

        with state.changed(recording=True, use_hooks=(), node_hooks=(take,)), self._region.replay():
            outputs = self._region.function(*args, **kwargs)
        self._region.check(outputs)
        if len(nodes) != self._count:
            raise RecomputeMismatchError(
                f"the recompute of a checkpointed region recorded {len(nodes)} operations, its forward {self._count}: "
                "the function must do the same on each call"
            )
        return nodes

    @staticmethod
    def _stand_in(x: Tensor) -> Tensor:
        """Return the leaf itself, or a leaf in place of the result of an operation outside."""
        if x.node is None:
            return x
        twin = Tensor.of(x.data, x.memory)
        twin.trainable = True
        return twin

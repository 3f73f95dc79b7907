"""Recompute in toygrad, once for each output that a backward reaches. See ``unigrad.protocols.CheckpointModule``.

So an output depends on exactly what it uses. The price: an inner value that two outputs share is summed in another order
than in the plain run, within rounding and not bit for bit, which clause C1 asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import toygrad
from toygrad import Tensor

from unigrad import tree
from unigrad.captures import name_in
from unigrad.errors import CapturedTensorError, CreatedParameterError
from unigrad_toy import tape


def run(region: Any) -> Any:
    if not toygrad.recording:
        outputs = region.function(*region.args, **region.kwargs)
        region.finish(outputs)
        return outputs
    leaves, layout = tree.flatten((region.args, region.kwargs))
    kept = tree.unflatten(layout, leaves, (region.args, region.kwargs))  # containers that nobody else can change
    needed = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    given = [x for x in needed if not x.is_leaf]  # a leaf is a border by itself

    def forward(again: bool) -> tuple[Any, list[Any]]:
        """Run on fresh leaves in place of the given tensors; return the outputs and those leaves."""
        fresh = {id(x): Tensor(x.data, requires_grad=True) for x in given}
        args, kwargs = region.args, region.kwargs
        if fresh or again:
            args, kwargs = tree.unflatten(layout, [fresh.get(id(x), x) for x in leaves], kept)
        return region.function(*args, **kwargs), [fresh[id(x)] for x in given]

    first = Tensor(0.0).serial
    outputs, inner = forward(again=False)
    region.finish(outputs)
    flat, shape = tree.flatten(outputs)
    outer = {id(x): x for x in [*region.parameters, *needed]} | {id(i): x for i, x in zip(inner, given, strict=True)}

    def gate(position: int, output: Any) -> Any:
        graph = tape.Graph([output])
        for node in graph.nodes:
            if id(node) not in outer and node.serial < first:  # older than this forward
                name = name_in(region.function, lambda value, node=node: value is node) or f"of shape {node.data.shape}"
                raise CapturedTensorError(
                    f"tensor {name} is neither an argument nor of the blocks; make it an argument"
                )
        reached = graph.leaves
        places = [inner.index(node) if node in inner else node for node in reached]

        def pull(cotangent: Any) -> list[Any]:
            second = Tensor(0.0).serial
            with tape.recompute():
                with region.replay():
                    again, fresh = forward(again=True)
                region.check(again)
                loss = tree.flatten(again)[0][position]
                graph = tape.Graph([loss])
                for leaf in graph.leaves:
                    if leaf.serial >= second and leaf not in fresh:
                        raise CreatedParameterError(f"a leaf of shape {leaf.data.shape} is created inside on each call")
                targets = [fresh[p] if isinstance(p, int) else p for p in places]
                parts = tape.vjp(graph, [Tensor(cotangent)], targets, retain=False, create=False)
            return [None if part is None else part.data for part in parts]

        return toygrad.record(output.data, tuple(outer.get(id(node), node) for node in reached), pull)

    gated = [gate(i, x) if isinstance(x, Tensor) and x.requires_grad else x for i, x in enumerate(flat)]
    return tree.unflatten(shape, gated, outputs)


def fingerprint(tensor: Any) -> Hashable:
    return hashlib.blake2b(tensor.data.tobytes(), digest_size=16).digest(), str(tensor.data.dtype)

"""Recompute behind gates: the graph of a region is thrown away after its forward, and made again in a backward.

The forward is recorded, so that its graph tells what each output depends on. See :mod:`unigrad_paddle.gates` for what stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import paddle

from unigrad import tree
from unigrad.errors import RecomputeMismatchError, UnsupportedError
from unigrad.protocols import Region
from unigrad.region_errors import argument_changed, argument_written, parameters_created
from unigrad_paddle.arrays import half, is_floating, is_half
from unigrad_paddle.captures import captured_leaf, created, intermediates, refuse_intermediate, refuse_unknown
from unigrad_paddle.compiled import refuse_compiled
from unigrad_paddle.engine import parallel
from unigrad_paddle.engines import releasing
from unigrad_paddle.fingerprint import fingerprint
from unigrad_paddle.framework import Tensor, node_of, view
from unigrad_paddle.gates import Gates
from unigrad_paddle.graph import refuse_fatal, walk
from unigrad_paddle.guards import hooks_held, hooks_of_forward
from unigrad_paddle.leaves import know, leaf_of
from unigrad_paddle.recompute import inside_region
from unigrad_paddle.stand_ins import Place, graphs, occupants, stood_in
from unigrad_paddle.tape import take
from unigrad_paddle.usage import unnoticed

__all__ = ["fingerprint", "run"]

_COMPILED = "Dy2StGradNode"


def run(region: Region) -> Any:
    """Run the region now, and again in each backward that needs its inner values."""
    refuse_compiled("a checkpoint")
    return _Call(region).forward()


class _Call:
    """One call of a region."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.leaves, self.layout = tree.flatten((region.args, region.kwargs))
        # Containers of its own and without the tensors: the function or its caller may change those that were given.
        self._like = tree.unflatten(self.layout, [None] * len(self.leaves), (region.args, region.kwargs))
        self.tensors = {id(leaf): leaf for leaf in self.leaves if isinstance(leaf, Tensor)}
        self.versions = {key: tensor.inplace_version for key, tensor in self.tensors.items()}
        for tensor in (*self.tensors.values(), *region.parameters):
            if not tensor.stop_gradient and is_half(tensor):
                raise UnsupportedError(half(tensor))
        self.rows: list[Place] = []
        self.inputs: list[Any] = []
        self.siblings: list[list[int]] = []
        self.outputs: list[int] = []
        self.depends: list[list[int]] = []

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any], dict[int, Any]]:
        """Return the arguments with leaves of their own in place of tensors that have a graph, and these by the id of the tensor."""
        twins: dict[int, Any] = {}
        given: dict[int, Any] = {}
        for key, tensor in self.tensors.items():
            if tensor.stop_gradient or tensor.is_leaf:
                continue
            twin = tensor.detach()
            twin.stop_gradient = False
            twins[key] = twin
            # no leaf, which could not be changed in place
            given[key] = view(twin)
        values = [given.get(id(leaf), leaf) for leaf in self.leaves]
        args, kwargs = tree.unflatten(self.layout, values, self._like)
        return args, kwargs, twins

    def changed(self) -> str | None:
        """Name of an argument that was changed in place since the region began."""
        for name, leaf in zip(self.layout.paths("argument"), self.leaves, strict=True):
            if id(leaf) in self.versions and leaf.inplace_version != self.versions[id(leaf)]:
                return str(name)
        return None

    def forward(self) -> Any:
        """Run the function, throw its graph away, and return its outputs behind gates."""
        region = self.region
        args, kwargs = region.args, region.kwargs
        with contextlib.suppress(AttributeError):
            region.args, region.kwargs = (), {}  # type: ignore[misc]  # read-only in the protocol, plain in the core
        # not those of models that are met later, whose buffers the function may have computed itself
        buffers = graphs(region.buffers)
        border = _by_node([*self.tensors.values(), *(row.tensor for row in buffers)])
        with created() as made, inside_region():
            outputs = region.function(*args, **kwargs)
        del args, kwargs
        name = self.changed()
        self.rows = [*occupants(region.places), *buffers]
        values, layout = tree.flatten(outputs)
        gated = [number for number, value in enumerate(values) if _has_graph(value)]
        depends = self._dependence([values[number] for number in gated], border, made)
        if name is not None and any(depends):
            raise argument_written(name)
        know(tensor for tensor in self.inputs if tensor.is_leaf)
        self._refuse_parallel()
        gated = [number for number, found in zip(gated, depends, strict=True) if found]
        depends = [found for found in depends if found]
        region.finish(outputs)
        self.outputs, self.depends = gated, depends
        plain = [value.detach() if isinstance(value, Tensor) and not value.stop_gradient else value for value in values]
        if gated:
            gates = Gates(self.inputs, depends, self.recompute)
            for number, output in zip(gated, gates.build([plain[number] for number in gated]), strict=True):
                plain[number] = output
        return tree.unflatten(layout, plain, outputs)

    def _refuse_parallel(self) -> None:
        """Raise for a parameter of DataParallel that nothing can stand in for: its exchange would begin with the recompute."""
        places = {id(row.tensor) for row in self.rows}
        for tensor in self.inputs:
            if id(tensor) not in places and parallel(tensor) is not None:
                raise UnsupportedError(
                    f"a checkpointed function uses a parameter of shape {tuple(tensor.shape)} of a model in DataParallel past its layer; "
                    "call the layer in it, or name the layer in blocks= and take the parameter from there in the function"
                )

    def _dependence(
        self, outputs: Sequence[Any], border: Mapping[Any, Sequence[Any]], made: Sequence[Any]
    ) -> list[list[int]]:
        """For each output the numbers of the inputs that it depends on; makes the list of inputs.

        The results of one operation have one node, which does not tell them apart: an output that depends on one of them counts for
        all, as in any graph of Paddle's.
        """
        region = self.region
        know(region.parameters)
        know(tensor for tensors in border.values() for tensor in tensors if tensor.is_leaf)
        made_of = {node_of(parameter): parameter for parameter in made if not parameter.stop_gradient}
        captured = intermediates(region.function) if outputs else {}
        numbers: dict[Any, list[int]] = {}
        found: list[list[int]] = []
        for output in outputs:
            nodes, ends = walk([node_of(output)], border)
            names = [node.name() for node in nodes]
            refuse_fatal(nodes, names)
            if _COMPILED in names:
                raise UnsupportedError(
                    "the checkpointed function calls what paddle.jit.to_static compiled, whose parameters nothing can stand in for; "
                    "checkpoint the plain layer"
                )
            refuse_intermediate(captured, nodes)
            depends = []
            for node in ends:
                if node not in numbers:
                    tensors = border.get(node, ())
                    if not tensors or tensors[0].is_leaf:
                        tensor = made_of.get(node)
                        if tensor is None:
                            tensor = leaf_of(node)
                        if tensor is None:
                            tensor = captured_leaf(region.function, node)
                        if tensor is None:
                            refuse_unknown()
                        tensors = [tensor]
                    numbers[node] = list(range(len(self.inputs), len(self.inputs) + len(tensors)))
                    self.siblings += [numbers[node]] * len(tensors)
                    self.inputs += tensors
                depends += numbers[node]
            found.append(depends)
        return found

    def recompute(self, vectors: Mapping[int, Any]) -> list[Any | None]:
        """Run the function again and return the gradient of each input for those of some outputs."""
        name = self.changed()
        if name is not None:
            raise argument_changed(name)
        region = self.region
        with ExitStack() as contexts:
            contexts.enter_context(region.replay())
            contexts.enter_context(unnoticed())
            contexts.enter_context(paddle.enable_grad())
            stand_ins = contexts.enter_context(stood_in(self.rows))
            args, kwargs, twins = self.arguments()
            given = [leaf for leaf in tree.flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
            standing = [*given, *stand_ins.values(), *(tensor for tensor in self.inputs if tensor.is_leaf)]
            del given
            with created() as made, hooks_of_forward(tensor for tensor in standing if not tensor.stop_gradient):
                outputs = region.function(*args, **kwargs)
            values = tree.flatten(outputs)[0]
            roots = [values[self.outputs[gate]] if len(values) > self.outputs[gate] else None for gate in vectors]
            nodes, ends = walk([node_of(root) for root in roots if _has_graph(root)])
            _refuse_created(made, ends)
            region.check(outputs)
            self._check_reached(all(map(_has_graph, roots)), vectors, set(ends), twins, stand_ins)
            real = self._real(nodes, ends, [*twins.values(), *stand_ins.values()])
            # A handle of its own for each output, since Paddle refuses a tensor that is given twice; nobody is to hold the outputs.
            ends = [view(root) for root in roots]
            del outputs, values, roots, args, kwargs, nodes
            found = _differentiate(ends, list(vectors.values()), real)
            twins_of = [(twins.get(id(tensor)), stand_ins.get(id(tensor))) for tensor in self.inputs]
            return [
                _sum([take(twin) for twin in twins if twin is not None] + [found.get(id(tensor))])
                for tensor, twins in zip(self.inputs, twins_of, strict=True)
            ]

    def _real(self, nodes: Sequence[Any], ends: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        """Leaves that a recompute reached and that nothing stands in for; raise if the forward did not depend on one of them."""
        others = set(ends) - set(map(node_of, own))
        if others:
            refuse_intermediate(intermediates(self.region.function), nodes)
        known = {node_of(tensor): tensor for tensor in self.inputs if tensor.is_leaf}
        if not others <= known.keys():
            raise RecomputeMismatchError(
                "the recompute of a checkpointed function reached a tensor that its forward did not depend on: one made before it that "
                "it uses without an argument, or one that needs a gradient only since; pass all that it uses as arguments"
            )
        return [known[node] for node in others]

    def _check_reached(
        self,
        graphs: bool,
        gates: Collection[int],
        reached: Collection[int],
        twins: Mapping[int, Any],
        stand_ins: Mapping[int, Any],
    ) -> None:
        """Raise unless the recomputed outputs depend on all that those of the forward depended on; else its gradient would be zero."""
        for number in sorted({number for gate in gates for number in self.depends[gate]}):
            tensor = self.inputs[number]
            stands = [
                one
                for sibling in map(self.inputs.__getitem__, self.siblings[number])
                for one in (twins.get(id(sibling)), stand_ins.get(id(sibling)), sibling)
                if one is not None
            ]
            if not graphs or (not tensor.stop_gradient and not any(node_of(one) in reached for one in stands)):
                raise RecomputeMismatchError(
                    f"the outputs of a checkpointed function depended on a tensor of shape {tuple(tensor.shape)} that needs a gradient in "
                    "the forward, and do not in the recompute; the function must do the same on each call"
                )


def _differentiate(roots: Sequence[Any], vectors: Sequence[Any], real: Sequence[Any]) -> dict[int, Any]:
    """Run Paddle's engine, and return what it wrote into leaves that nothing stands in for; what stood there is put back."""
    before = [(leaf, take(leaf)) for leaf in real]
    try:
        with releasing(True), hooks_held(real):
            paddle.autograd.backward(list(roots), list(vectors))
        return {id(leaf): take(leaf) for leaf in real}
    finally:
        for leaf, gradient in before:
            leaf.clear_gradient(False)
            if gradient is not None:
                leaf.grad = gradient


def _by_node(tensors: Sequence[Any]) -> dict[Any, list[Any]]:
    """Those of the tensors that need a gradient, by their nodes; the results of one operation have the same one."""
    found: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if not tensor.stop_gradient:
            found.setdefault(node_of(tensor), []).append(tensor)
    return found


def _has_graph(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.stop_gradient or not (is_floating(value) or value.is_complex()):
        return False
    return node_of(value) is not None


def _sum(found: Sequence[Any | None]) -> Any | None:
    total = None
    for one in found:
        if one is not None:
            total = one if total is None else total + one
    return total


def _refuse_created(made: Sequence[Any], ends: Sequence[Any]) -> None:
    inside = set(ends)
    names = [
        f"{parameter.name} {tuple(parameter.shape)}"
        for parameter in made
        if not parameter.stop_gradient and node_of(parameter) in inside
    ]
    if names:
        raise parameters_created(names)

"""Checkpoint: it is the function in everything but memory, whatever goes in and comes out."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad import tree
from unigrad_conformance.suite.problems import array, dense, gradients_of, same_bits, to_numpy
from unigrad_conformance.suite.regions import total

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    """A nesting of an own type."""

    logits: Any
    hidden: Any = None


def _scale(samples, forward):
    return unigrad.wrap(samples.model(forward, parameters={"w": array(3)}))


def _both(samples, forward, call):
    """Assert that gradients and outputs of ``call(run, x)`` are those of the plain run; return the outputs."""
    found, outputs = [], []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _scale(samples, forward)
        with unigrad.GradientCollector(block, on_unused="ignore") as collector:
            x = collector.watch(samples.tensor(array(3, seed=9)), name="x")
            out = call(checkpoint(block), x)
            collector.backward(total(samples, out))
        outputs.append(out)
        arrays = [
            to_numpy(leaf) if collector.backend.arrays.is_tensor(leaf) else np.array(repr(leaf))
            for leaf in tree.flatten(out)[0]
        ]
        found.append(
            gradients_of(collector)
            | {f"input {name}": to_numpy(value) for name, value in collector.input_gradients.items()}
            | {f"output {index}": value for index, value in enumerate(arrays)}
        )
    same_bits(*found)
    assert tree.flatten(outputs[0])[1] == tree.flatten(outputs[1])[1]
    return outputs[1]


@pytest.mark.clause("C5")
def test_keyword_arguments(samples):
    _both(samples, lambda self, x, *, scale, shift=None: x * self.w * scale, lambda run, x: run(x=x, scale=x))


@pytest.mark.clause("C5")
def test_flag_is_the_same_by_position_and_by_keyword(samples):
    def forward(self, x, double=False):
        return x * self.w * 2.0 if double else x * self.w

    by_keyword = _both(samples, forward, lambda run, x: run(x, double=True))
    by_position = _both(samples, forward, lambda run, x: run(x, True))
    same_bits({"y": to_numpy(by_keyword)}, {"y": to_numpy(by_position)})


@pytest.mark.clause("C5")
def test_nested_arguments_and_none(samples):
    def forward(self, batch, mask, rest):
        x = batch["x"] * self.w
        assert mask is None
        assert isinstance(rest, Pair)
        return x + rest.left[0] * rest.right

    _both(samples, forward, lambda run, x: run({"x": x, "name": "batch"}, None, Pair([x], 3.0)))


@pytest.mark.clause("C5")
def test_outputs_of_every_nesting(samples):
    operations = samples.operations

    def forward(self, x):
        y = x * self.w
        return {
            "pair": Pair(operations.tanh(y), None),
            "list": [operations.sin(y), ("name", 3, True, 2.5)],
            "own": Output(operations.cos(y), hidden={"a": operations.exp(y)}),
        }

    out = _both(samples, forward, lambda run, x: run(x))
    assert type(out["pair"]) is Pair
    assert type(out["own"]) is Output
    assert out["list"][1] == ("name", 3, True, 2.5)


@pytest.mark.clause("C5")
def test_integer_and_boolean_outputs_pass_through(samples):
    operations = samples.operations

    def forward(self, x):
        y = x * self.w
        return y, operations.argmax(y), y > 0.0

    y, largest, positive = _both(samples, forward, lambda run, x: run(x))
    assert int(to_numpy(largest)) == int(np.argmax(to_numpy(y)))
    assert to_numpy(positive).dtype == bool


@pytest.mark.clause("C5")
def test_same_tensor_as_two_arguments_sums_both_gradients(samples):
    _both(samples, lambda self, x, y: x * self.w + samples.operations.sin(y), lambda run, x: run(x, x))


ONE_NODE = {
    "parts of one split": lambda operations, h: operations.split(h, 3, 1),
    "in a list": lambda operations, h: ([*operations.split(h, 3, 1)],),
    "a tensor and all of it": lambda operations, h: (h, operations.index(h, slice(None))),
    "all of it and a tensor": lambda operations, h: (operations.index(h, slice(None)), h),
}
"""Arguments for which a graph may have one node, which alone does not tell them apart."""


@pytest.mark.clause("C5", "C1")
@pytest.mark.parametrize("nested", [False, True], ids=["one region", "a region in a region"])
@pytest.mark.parametrize("given", ONE_NODE)
def test_arguments_from_one_operation_have_each_their_gradient(samples, given, nested):
    """As queries, keys and values of one projection."""
    operations = samples.operations

    def attend(*given):
        q, k, *rest = given[0] if isinstance(given[0], list) else given
        return operations.tanh(q * k) + (operations.sin(rest[0]) if rest else 0.0)

    found = []
    for checkpoint in (lambda function, blocks: function, unigrad.checkpoint):
        block = unigrad.wrap(dense(samples, 3, 6))
        run = checkpoint(attend, blocks=[block])

        def outer(x, block=block, run=run):
            return run(*ONE_NODE[given](operations, operations.sin(block(x))))

        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(samples.tensor(array(2, 3, seed=9)), name="x")
            collector.backward(operations.sum((checkpoint(outer, blocks=[block]) if nested else outer)(x)))
        found.append(gradients_of(collector) | {"x": to_numpy(collector.input_gradients["x"])})
    same_bits(*found)


@pytest.mark.clause("C5", "C6")
def test_parameter_and_all_of_it_as_arguments(samples):
    """What a slice of all gives may be another name of the parameter itself; later losses still find it."""
    operations, found = samples.operations, []
    for checkpoint in (lambda function, blocks: function, unigrad.checkpoint):
        weight = samples.leaf(array(3))
        block = unigrad.wrap({"weight": weight})
        run = checkpoint(lambda a, b: operations.tanh(a * 2.0) * b, blocks=[])
        with unigrad.GradientCollector(block, accumulate="add") as collector:
            collector.backward(operations.sum(run(weight, operations.index(weight, slice(None)))))
            collector.backward(operations.sum(operations.sin(weight)))
        found.append(gradients_of(collector))
    assert list(found[0]) == ["weight"]
    same_bits(*found)


@pytest.mark.clause("C5")
def test_same_tensor_twice_in_one_nesting(samples):
    _both(
        samples, lambda self, xs: xs[0] * self.w + samples.operations.sin(xs[1]["x"]), lambda run, x: run([x, {"x": x}])
    )


@pytest.mark.clause("C5")
def test_same_output_twice(samples):
    def forward(self, x):
        y = x * self.w
        return y, y

    _both(samples, forward, lambda run, x: run(x))


@pytest.mark.clause("C5")
def test_input_handed_back_as_output(samples):
    _both(samples, lambda self, x: (x, x * self.w), lambda run, x: run(x))


@pytest.mark.clause("C5")
def test_parameter_handed_back_as_output(samples):
    _both(samples, lambda self, x: (self.w, x * self.w), lambda run, x: run(x))


@pytest.mark.clause("C5")
def test_input_that_needs_no_gradient(samples):
    constant = samples.tensor(array(3, seed=4))
    _both(samples, lambda self, x: x * self.w, lambda run, x: run(constant))


@pytest.mark.clause("C5")
def test_no_inputs_at_all(samples):
    _both(samples, lambda self: samples.operations.tanh(self.w), lambda run, x: run())


@pytest.mark.clause("C5")
def test_scalar_and_empty_outputs(samples):
    def forward(self, x):
        y = x * self.w
        return samples.operations.sum(y), samples.operations.index(y, slice(0, 0))

    _both(samples, forward, lambda run, x: run(x))


@pytest.mark.clause("C5")
def test_output_without_any_tensor_is_returned(samples):
    block = _scale(samples, lambda self, x: ("nothing", None, 4))
    with unigrad.GradientCollector(block, on_unused="ignore"):
        assert unigrad.checkpoint(block)(samples.tensor(array(3))) == ("nothing", None, 4)


@pytest.mark.clause("C5")
def test_arguments_are_handed_over_as_they_are(samples):
    """Objects keep their type and identity, in the forward and in the recompute."""
    marker, seen = object(), []

    def forward(self, x, extra):
        seen.append(extra["marker"] is marker and type(extra) is dict and extra["name"] == "mask")
        return samples.operations.tanh(x * self.w)

    block = _scale(samples, forward)
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(3)), {"marker": marker, "name": "mask"}))
        collector.backward(loss)
    assert seen == [True, True]


@pytest.mark.clause("C5")
def test_list_argument_changed_after_the_forward_is_not_seen_by_the_recompute(samples):
    """A container filled further by the caller would give the recompute other inputs: it is an error or no difference."""
    block = _scale(samples, lambda self, xs: samples.operations.tanh(xs[0] * self.w) * float(len(xs)))
    with unigrad.GradientCollector(block) as collector:
        given_list = [samples.tensor(array(3))]
        loss = samples.operations.sum(unigrad.checkpoint(block)(given_list))
        given_list.append(given_list[0])
        try:
            collector.backward(loss)
        except unigrad.RecomputeMismatchError:
            return
    slope = 1 - np.tanh(array(3) * array(3)) ** 2
    # One tanh and two products in float32.
    np.testing.assert_allclose(to_numpy(collector.gradients["w"]), slope * array(3), rtol=1e-6)


_LEAVES = st.one_of(
    st.just("tensor"), st.just("tensor"), st.none(), st.integers(-3, 3), st.booleans(), st.sampled_from(["mask", ""])
)
_NESTINGS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Output, inner, inner),
    ),
    max_leaves=6,
)


@pytest.mark.clause("C5", "C1")
@settings(max_examples=60)
@given(args=st.lists(_NESTINGS, max_size=2), named=st.dictionaries(st.sampled_from(["p", "q"]), _NESTINGS, max_size=2))
def test_any_nesting_of_arguments_and_outputs(samples, args, named):
    """Every tensor of any nesting gets the gradient of the plain run, and everything else passes unchanged."""
    operations = samples.operations

    def forward(self, *inner, **keywords):
        is_tensor = unigrad.backend_of(self).arrays.is_tensor
        return tree.map_leaves(lambda leaf: operations.sin(leaf) if is_tensor(leaf) else leaf, (inner, keywords))

    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(samples.model(forward))
        is_tensor = block.backend.arrays.is_tensor
        names: list[str] = []
        with unigrad.GradientCollector(block, parameters=False) as collector:

            def make(leaf, collector=collector, names=names):
                if leaf != "tensor":
                    return leaf
                names.append(str(len(names)))
                return collector.watch(samples.tensor(array(2, seed=len(names))), name=names[-1])

            inner, keywords = tree.map_leaves(make, (args, named))
            out = checkpoint(block)(*inner, **keywords)
            if names:
                collector.backward(total(samples, out))
        leaves, layout = tree.flatten(out)
        plain = ["tensor" if is_tensor(leaf) else leaf for leaf in leaves]
        assert (repr(plain), layout) == (repr(tree.flatten((args, named))[0]), tree.flatten((tuple(args), named))[1])
        found.append({name: to_numpy(value) for name, value in collector.input_gradients.items()})
        assert sorted(found[-1]) == sorted(names)
    same_bits(*found)

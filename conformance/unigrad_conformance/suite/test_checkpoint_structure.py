"""Checkpoint: it is the function in everything but memory, whatever goes in and comes out."""

from __future__ import annotations

import warnings
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import unigrad
from unigrad import tree
from unigrad.protocols import Capability
from unigrad_conformance.suite.problems import array, gradients_of, same_bits, to_numpy
from unigrad_conformance.suite.regions import Counted, total

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
            to_numpy(leaf) if collector.backend.block.is_tensor(leaf) else np.array(repr(leaf))
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


@pytest.mark.clause("C5", "G2")
def test_several_losses_from_one_region(samples):
    operations = samples.operations

    def forward(self, x):
        return operations.tanh(x * self.w), operations.sin(x * self.w)

    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = _scale(samples, forward)
        steps = {}
        with unigrad.GradientCollector(block) as collector:
            x = collector.watch(samples.tensor(array(3, seed=9)), name="x")
            y, z = checkpoint(block)(x)
            for name, loss, retain in (("y", y, True), ("z", z, True), ("y again", y, True), ("both", y + z, False)):
                collector.backward(operations.sum(loss), retain_graph=retain)
                steps[f"w of {name}"] = to_numpy(collector.gradients["w"])
                steps[f"x of {name}"] = to_numpy(collector.input_gradients["x"])
        found.append(steps)
    for name, value in found[0].items():
        if name.endswith("both"):  # two contributions, which a recompute may sum in another order
            np.testing.assert_allclose(found[1][name], value, rtol=4 * np.finfo("float32").eps)
        else:
            assert found[1][name].tobytes() == value.tobytes(), name


@pytest.mark.clause("C5", "G3")
def test_released_region_raises(samples):
    block = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w))
    with unigrad.GradientCollector(block) as collector:
        loss = total(samples, unigrad.checkpoint(block)(samples.tensor(array(3))))
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
        before = gradients_of(collector)
        with pytest.raises(unigrad.GraphReleasedError):
            collector.backward(loss)
        same_bits(before, gradients_of(collector))


@pytest.mark.clause("C5")
def test_shared_parameters_of_two_regions_sum(samples):
    operations = samples.operations
    first = samples.model(lambda self, x: operations.tanh(x * self.w), parameters={"w": array(3)})
    second = samples.model(lambda self, x: operations.sin(x * self.w), parameters={"w": first.w})
    block = unigrad.join(first=first, second=second)
    found = []
    for checkpoint in (lambda model: model, unigrad.checkpoint):
        with unigrad.GradientCollector(block) as collector:
            x = samples.tensor(array(3, seed=9))
            collector.backward(operations.sum(checkpoint(second)(checkpoint(first)(x))))
        found.append(gradients_of(collector))
    assert sorted(found[0]) == ["first.w"]
    # Two contributions in either order, each of three float32 products.
    np.testing.assert_allclose(found[1]["first.w"], found[0]["first.w"], rtol=8 * np.finfo("float32").eps)


@pytest.mark.clause("C5")
def test_no_grad_is_the_plain_call_without_a_warning(samples, backend):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    block = _scale(samples, forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unigrad.GradientCollector(block, on_unused="ignore"), samples.no_grad():
            y = unigrad.checkpoint(block)(samples.tensor(array(3)))
    assert count.calls == 1
    assert not backend.block.requires_gradient(y)
    same_bits({"y": to_numpy(y)}, {"y": to_numpy(block(samples.tensor(array(3))))})


@pytest.mark.clause("C5")
def test_nothing_trainable_is_the_plain_call(samples, backend):
    block = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w)).freeze("w")
    with unigrad.GradientCollector(block, on_unused="ignore"):
        y = unigrad.checkpoint(block)(samples.tensor(array(3)))
    assert not backend.block.requires_gradient(y)


@pytest.mark.clause("C5")
def test_disabled_checkpoint_is_the_plain_call(samples):
    count = Counted()

    def forward(self, x):
        count()
        return samples.operations.tanh(x * self.w)

    block = _scale(samples, forward)
    run = unigrad.checkpoint(block.native)
    run.enabled = False
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, run(samples.tensor(array(3)))))
    assert count.calls == 1
    run.enabled = True
    with unigrad.GradientCollector(block) as collector:
        collector.backward(total(samples, run(samples.tensor(array(3)))))
    assert count.calls == 3


@pytest.mark.clause("C5")
def test_function_over_blocks(samples):
    found = []
    for checkpoint in (False, True):
        first = _scale(samples, lambda self, x: samples.operations.tanh(x * self.w))
        second = unigrad.wrap(samples.model(lambda self, x: x + self.b, parameters={"b": array(3, seed=2)}))

        def both(x, factor, first=first, second=second):
            return second(first(x)) * factor

        run = unigrad.checkpoint(both, blocks=[first, second]) if checkpoint else both
        with unigrad.GradientCollector({"first": first, "second": second}) as collector:
            collector.backward(total(samples, run(samples.tensor(array(3)), factor=2.0)))
        found.append(gradients_of(collector))
    assert sorted(found[0]) == ["first.w", "second.b"]
    same_bits(*found)


@pytest.mark.clause("C5", "C10")
@pytest.mark.needs(Capability.CAPTURES)
def test_functions_and_methods_stay_what_they_are(samples):
    model = samples.model(lambda self, x: x * self.w, parameters={"w": array(3)})

    @unigrad.checkpoint
    def run(x):
        """Say what it does."""
        return samples.operations.tanh(model(x))

    class Holder:
        @unigrad.checkpoint
        def method(self, x):
            return samples.operations.tanh(model(x)) * self.factor

        factor = 2.0

    assert run.__name__ == "run"
    assert run.__doc__ == "Say what it does."
    for call in (run, Holder().method):
        with unigrad.GradientCollector(model) as collector:
            collector.backward(total(samples, call(samples.tensor(array(3)))))
        assert list(collector.gradients) == ["w"]


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
        is_tensor = unigrad.backend_of(self).block.is_tensor
        return tree.map_leaves(lambda leaf: operations.sin(leaf) if is_tensor(leaf) else leaf, (inner, keywords))

    found = []
    for checkpoint in (lambda block: block, unigrad.checkpoint):
        block = unigrad.wrap(samples.model(forward))
        is_tensor = block.backend.block.is_tensor
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
        plain = tree.map_leaves(lambda leaf, is_tensor=is_tensor: "tensor" if is_tensor(leaf) else leaf, out)
        assert plain == (tuple(args), named)
        found.append({name: to_numpy(value) for name, value in collector.input_gradients.items()})
        assert sorted(found[-1]) == sorted(names)
    same_bits(*found)

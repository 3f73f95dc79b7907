"""Clauses G1, G5, G6 and G10: what one backward adds or writes, under which names."""

from __future__ import annotations

import numpy as np
import pytest

import unigrad
from unigrad_conformance.suite.collecting import collects, f32, leaves, native_gradients
from unigrad_conformance.suite.problems import dense, gradients_of, same_bits, to_numpy

EXACT = "small integers, exact in every dtype"


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


@pytest.mark.clause("G1")
def test_write_holds_exactly_the_last_call(samples, record):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    operations = samples.operations
    with collector_of(own, "write") as collector:
        collector.backward(operations.sum(own["a"] * own["a"]))
        collects(collector.gradients, a=[2, 4])
        collector.backward(operations.sum(own["b"] * 3.0))
        collects(collector.gradients, b=[3, 3])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G1")
def test_add_sums_per_name(samples, record):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    operations = samples.operations
    with collector_of(own) as collector:
        collector.backward(operations.sum(own["a"] * own["a"]))
        collector.backward(operations.sum(own["b"] * own["a"]))
        collects(collector.gradients, a=[2 + 3, 4 + 4], b=[1, 2])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G1")
def test_the_first_add_is_a_write_bit_for_bit(samples):
    found = {}
    for mode in ("write", "add"):
        model = dense(samples, 5, 3)
        x = samples.tensor(np.linspace(-1, 1, 20, dtype="float32").reshape(4, 5))
        with unigrad.GradientCollector(model, mode) as collector:
            y = model(x)
            collector.backward(samples.operations.sum(y * y))
        found[mode] = gradients_of(collector)
    same_bits(found["write"], found["add"])


@pytest.mark.clause("G1")
def test_a_second_round_of_add_is_exactly_double(samples):
    model = dense(samples, 5, 3)
    x = samples.tensor(np.linspace(-1, 1, 20, dtype="float32").reshape(4, 5))
    rounds = []
    with unigrad.GradientCollector(model, "add") as collector:
        for _ in range(2):
            y = model(x)
            collector.backward(samples.operations.sum(y * y))
            rounds.append(gradients_of(collector))
    same_bits({name: 2 * value for name, value in rounds[0].items()}, rounds[1])


@pytest.mark.clause("G1", "G4")
@pytest.mark.parametrize("mode", ["write", "add"])
def test_native_gradient_slots_stay_as_they_were(samples, backend, mode):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    backend.tape.set_native_gradient(own["a"], samples.tensor(f32([7, 8])))
    before = native_gradients(backend, own)
    with collector_of(own, mode) as collector:
        for _ in range(3):
            collector.backward(samples.operations.sum(own["a"] * own["b"]))
        collector.zero()
    assert before["b"] is None or not before["b"].any()  # a framework may show an empty slot as zeros
    after = native_gradients(backend, own)
    assert after["a"] is not None
    np.testing.assert_array_equal(after["a"], [7, 8])
    assert after["b"] is None or not after["b"].any()


@pytest.mark.clause("G5")
def test_zero_clears_to_none(samples, backend):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own) as collector:
        watched = collector.watch(samples.tensor(f32([1, 1])), "x")
        collector.backward(samples.operations.sum(own["a"] * watched))
        collector.zero()
        assert dict(collector.gradients) == {}
        assert dict(collector.input_gradients) == {}
        assert "a" not in collector.gradients
        assert collector.usage.reached == ()


@pytest.mark.clause("G5")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=["nan", "infinity"])
def test_nan_and_infinity_do_not_survive_zero(samples, poison):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * poison))
        assert not np.isfinite(to_numpy(collector.gradients["a"])).any()
        collector.zero()
        collector.backward(samples.operations.sum(own["a"] * 3.0))
        collects(collector.gradients, a=[3, 3])


@pytest.mark.clause("G5", "G11")
def test_zero_forgets_weights(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"] * 5.0), weight=3)
        collector.zero()
        collector.backward(samples.operations.sum(own["a"] * 2.0))
        collector.backward(samples.operations.sum(own["a"] * 2.0))
        collects(collector.gradients, a=[4, 4])


@pytest.mark.clause("G5")
def test_zero_releases_no_graph(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward(loss, retain_graph=True)
        collector.zero()
        collector.backward(loss)
        collects(collector.gradients, a=[2, 4])


@pytest.mark.clause("G6")
def test_multiplied_by_zero_is_there_and_unreached_is_absent(samples, record):
    own = leaves(samples, used=[1, 2], zeroed=[3, 4], stopped=[5, 6], never=[7, 8])
    operations = samples.operations
    with collector_of(own, "write") as collector:
        loss = own["used"] * own["used"] + own["zeroed"] * 0.0 + operations.stop_gradient(own["stopped"])
        collector.backward(operations.sum(loss))
    collects(collector.gradients, used=[2, 4], zeroed=[0, 0])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G6")
def test_added_and_taken_away_again_is_there(samples, record):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own, "write") as collector:
        collector.backward(samples.operations.sum(own["a"] + own["b"] - own["b"]))
    collects(collector.gradients, a=[1, 1], b=[0, 0])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G6")
def test_unselected_by_where_is_a_zero_that_is_there(samples, record):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    operations = samples.operations
    with collector_of(own, "write") as collector:
        condition = samples.tensor(f32([1, 1])) > 0.0
        collector.backward(operations.sum(operations.where(condition, own["a"], own["b"])))
    collects(collector.gradients, a=[1, 1], b=[0, 0])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G6", "X2")
@pytest.mark.parametrize("name", ["round", "sign"])
def test_zero_derivative_everywhere_is_a_choice(samples, record, name):
    own = leaves(samples, a=[1.2, -2.7])
    with collector_of(own, "write") as collector:
        y = getattr(samples.operations, name)(own["a"])
        collector.backward(samples.operations.sum(y + own["a"]))
    found = to_numpy(collector.gradients["a"])
    np.testing.assert_array_equal(found, f32([1, 1]))
    with collector_of(own, "write") as collector:
        collector.backward(samples.operations.sum(getattr(samples.operations, name)(own["a"]) + own["a"] * 0.0))
    record("gradients", collector.gradients, reason=EXACT, choice=True)


@pytest.mark.clause("G6")
def test_gradients_or_zeros_fills_with_exact_shapes(samples, record):
    own = leaves(samples, used=[[1, 2], [3, 4]], never=[[5, 6, 7]])
    with collector_of(own, "write") as collector:
        collector.backward(samples.operations.sum(own["used"] * 2.0))
    filled = collector.gradients_or_zeros()
    collects(filled, used=[[2, 2], [2, 2]], never=[[0, 0, 0]])
    assert to_numpy(filled["never"]).dtype == np.float32
    assert list(collector.gradients) == ["used"]
    record("filled", filled, reason=EXACT)


@pytest.mark.clause("G6")
def test_gradients_or_zeros_leaves_frozen_ones_out(samples):
    block = unigrad.wrap(dense(samples, 2, 2)).freeze("bias")
    with collector_of(block, "write") as collector:
        collector.backward(samples.operations.sum(block(samples.tensor(f32([[1, 2]])))))
    assert list(collector.gradients_or_zeros()) == ["weight"]


@pytest.mark.clause("G6")
def test_an_absent_name_is_a_key_error_that_lists_the_present_ones(samples):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    with collector_of(own, "write") as collector:
        collector.backward(samples.operations.sum(own["a"]))
    with pytest.raises(KeyError, match=r"'b'.*\ba\b"):
        collector.gradients["b"]


@pytest.mark.clause("G1")
def test_gradients_is_read_only(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own, "write") as collector:
        collector.backward(samples.operations.sum(own["a"]))
    with pytest.raises(TypeError):
        collector.gradients["a"] = own["a"]
    with pytest.raises(TypeError):
        del collector.gradients["a"]


@pytest.mark.clause("G10")
def test_a_list_of_losses_is_their_sum(samples, record):
    own = leaves(samples, a=[1, 2], b=[3, 4])
    operations = samples.operations
    with collector_of(own, "write") as collector:
        trunk = own["a"] * own["b"]
        collector.backward([operations.sum(trunk), operations.sum(trunk * trunk), operations.sum(own["b"])])
    # d(ab + a²b² + b): a: b + 2ab², b: a + 2a²b + 1
    collects(collector.gradients, a=[3 + 18, 4 + 64], b=[1 + 6 + 1, 2 + 32 + 1])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G10")
def test_the_same_loss_twice_in_a_list_counts_twice(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own, "write") as collector:
        loss = samples.operations.sum(own["a"] * own["a"])
        collector.backward((loss, loss))
    collects(collector.gradients, a=[4, 8])


@pytest.mark.clause("G10")
def test_a_sliced_parameter_sums_its_slices(samples, record):
    own = leaves(samples, a=[1, 2, 3])
    operations = samples.operations
    with collector_of(own, "write") as collector:
        head, tail = operations.index(own["a"], slice(0, 2)), operations.index(own["a"], slice(1, 3))
        collector.backward(operations.sum(head * tail))
    collects(collector.gradients, a=[2, 1 + 3, 2])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G10")
def test_repeated_indices_sum_and_are_dense(samples, record):
    own = leaves(samples, table=[[1, 2], [3, 4], [5, 6]])
    operations = samples.operations
    with collector_of(own, "write") as collector:
        rows = operations.take(own["table"], samples.tensor(np.array([2, 0, 2, 2])))
        collector.backward(operations.sum(rows))
    collects(collector.gradients, table=[[1, 1], [0, 0], [3, 3]])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G10", "B1")
def test_a_tied_parameter_is_collected_once_with_the_sum(samples, record):
    other = samples.model(lambda self, x: self.weight * x, parameters={"weight": f32([2, 3])})
    shared = unigrad.wrap(other).parameters["weight"]
    model = samples.model(
        lambda self, x: samples.operations.sum(self.first * x) + samples.operations.sum(self.second * self.second),
        parameters={"first": shared, "second": shared},
    )
    block = unigrad.wrap(model)
    with collector_of(block, "write") as collector:
        collector.backward(block(samples.tensor(f32([10, 20]))))
    (name,) = collector.gradients
    assert set(block.aliases.values()) == {name}
    np.testing.assert_array_equal(to_numpy(collector.gradients[name]), [10 + 4, 20 + 6])
    record("gradients", collector.gradients, reason=EXACT)


@pytest.mark.clause("G1", "B7")
def test_a_mapping_of_blocks_gives_prefixed_names(samples, record):
    operations = samples.operations
    encoder, decoder = dense(samples, 2, 2, bias=False), dense(samples, 2, 1, seed=5, bias=False)
    with collector_of({"encoder": unigrad.wrap(encoder), "decoder": unigrad.wrap(decoder)}) as collector:
        hidden = encoder(samples.tensor(f32([[1, 2]])))
        collector.backward(operations.sum(decoder(hidden)))
    assert sorted(collector.gradients) == ["decoder.weight", "encoder.weight"]
    np.testing.assert_array_equal(to_numpy(collector.gradients["decoder.weight"]), to_numpy(hidden))
    record("gradients", collector.gradients, terms=2, reason="a product of two, summed over two inputs")


@pytest.mark.clause("G5", "G11")
def test_scale_before_zero_does_not_reach_what_comes_after(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
        collector.scale(8.0)
        collector.zero()
        collector.backward(samples.operations.sum(own["a"]))
    collects(collector.gradients, a=[1, 1])

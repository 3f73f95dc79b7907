"""The recorded graph of the NumPy backend: dependence, release, hooks, and that nothing stays alive (clauses G2 to G15)."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from unigrad_numpy import ops
from unigrad_numpy.graph import (
    Node,
    Saved,
    base_of,
    enable_grad,
    is_recording,
    keep,
    log_storages,
    no_grad,
    observe_uses,
    pass_cache,
    release,
    saved_hooks,
    vector_jacobian_product,
    walk,
)
from unigrad_numpy.tensor import Parameter, Tensor

from unigrad.errors import GraphReleasedError

ONE = np.ones(())


def leaf(*values):
    return Tensor(np.array(values), requires_grad=True)


def backward(loss, *targets, retain=True):
    graph = walk([loss])
    found = vector_jacobian_product([loss], [np.ones(loss.shape)], targets, graph)
    if not retain:
        release(graph.nodes)
    return found


def test_three_backwards_and_a_fourth():
    """Case 2."""
    x1, x2 = leaf(1.0, 2, 3, 4), leaf(5.0, 6, 7, 8)
    loss = ops.sum(x1 * x2 * x1)
    for retain in (True, True, False):
        dx1, dx2 = backward(loss, x1, x2, retain=retain)
        assert dx1.tolist() == [10, 24, 42, 64]
        assert dx2.tolist() == [1, 4, 9, 16]
    with pytest.raises(GraphReleasedError, match=r"released at operation 'sum'.*retain_graph=True"):
        backward(loss, x1)


@pytest.mark.parametrize("build", [lambda x: ops.sum(x * x), ops.sum, lambda x: ops.sum(x) + 1.0])
def test_release_does_not_depend_on_what_was_saved(build):
    """Case 11: also graphs that saved nothing."""
    x = leaf(1.0, 2.0)
    loss = build(x)
    backward(loss, x, retain=False)
    assert loss.node.released
    with pytest.raises(GraphReleasedError):
        backward(loss, x)


def test_release_reaches_what_the_backward_did_not_run_and_spares_the_leaves():
    a, b = leaf(1.0), leaf(2.0)
    trunk = a + 1.0
    loss = ops.sum(trunk * b)
    other = ops.sum(trunk * 3.0)
    backward(loss, b, retain=False)
    with pytest.raises(GraphReleasedError, match="'add'"):
        backward(other, a)
    assert backward(ops.sum(a * b), a)[0].tolist() == [2]


def test_intermediate_sums_start_anew():
    """Case 16."""
    x = leaf(3.0)
    loss = ops.sum((2.0 * x) ** 2)
    assert [backward(loss, x)[0].tolist() for _ in range(2)] == [[24], [24]]


def test_targets_are_leaves_results_or_nothing():
    a, b, c = leaf(2.0), leaf(3.0), leaf(4.0)
    h = a * b
    loss = ops.sum(h * h)
    graph = walk([loss])
    assert [id(tensor) for tensor in graph.leaves] == [id(a), id(b)]
    assert [node.name for node in graph.nodes] == ["sum", "mul", "mul"]
    dh, da, dc, again = backward(loss, h, a, c, a)
    assert dh.tolist() == [12]
    assert da.tolist() == again.tolist() == [36]
    assert not np.shares_memory(da, again)
    assert dc is None
    assert backward(loss, loss)[0] == 1.0
    assert backward(a, a)[0].tolist() == [1]
    assert backward(loss, Tensor(np.array([1.0]))) == [None]


def test_dependence_is_structural():
    """Case 70 and clause G6."""
    a, b = leaf(2.0), leaf(3.0)
    assert backward(ops.sum(a * a + 0.0 * b), b)[0].tolist() == [0]
    assert backward(ops.sum(a + b - b), b)[0].tolist() == [0]
    assert backward(ops.sum(a * b.detach()), b) == [None]
    assert backward(ops.sum(a * ops.round(b)), b)[0].tolist() == [0]
    assert backward(ops.sum(ops.where(np.array([True]), a, b)), b)[0].tolist() == [0]
    assert walk([ops.sum(a * Tensor(np.array([0, 1])[[1]]))]).leaves == [a]


def test_several_outputs_and_a_repeated_one():
    a = leaf(2.0)
    h = a * a
    found = vector_jacobian_product([h, h, a], [np.array([1.0]), np.array([2.0]), np.array([10.0])], [a])
    assert found[0].tolist() == [22]
    with pytest.raises(ValueError, match=r"shape \(2,\)"):
        vector_jacobian_product([h], [np.ones(2)], [a])


def test_only_what_leads_to_a_target_is_computed():
    ran = []

    def vjp(context, saved, g, needs):
        ran.append((context, needs))
        return g, g

    from unigrad_numpy.ops.base import record

    x, w1, w2 = leaf(1.0), leaf(2.0), leaf(3.0)
    h = record("one", x._array + w1._array, (x, w1), vjp, context="one")
    side = record("side", w2._array + 0.0, (w2, w2), vjp, context="side")
    loss = record("two", h._array + side._array, (h, side), vjp, context="two")
    backward(loss, x)
    assert ran == [("two", (True, False)), ("one", (True, False))]


def test_cotangents_of_others_are_not_written():
    a, b = leaf(1.0, 1.0), leaf(1.0, 1.0)
    h = a + b
    cotangent = np.ones(2)
    da, db = vector_jacobian_product([h + h + a + a], [cotangent], [a, b])
    assert cotangent.tolist() == [1, 1]
    assert da.tolist() == [4, 4]
    assert db.tolist() == [2, 2]
    da *= 0
    assert db.tolist() == [2, 2]


def test_recording_is_switched_by_thread():
    x = leaf(1.0)
    seen = []
    with no_grad():
        assert not is_recording()
        assert (x * 2.0).node is None
        with enable_grad():
            assert (x * 2.0).node is not None
        thread = threading.Thread(target=lambda: seen.append(is_recording()))
        thread.start()
        thread.join()
        with pytest.raises(KeyError), enable_grad():
            raise KeyError
        assert not is_recording()
    assert is_recording()
    assert seen == [True]


def test_deep_graphs_neither_recurse_in_backward_nor_when_they_die():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + 1.0
    assert backward(y, x)[0].tolist() == [1]
    middle = weakref.ref(y.node.inputs[0])
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200)
    try:
        del y
    finally:
        sys.setrecursionlimit(limit)
    assert middle() is None


def test_a_diamond_is_walked_once():
    """2 ** 60 paths, 60 nodes."""
    x = leaf(1.0)
    y = x
    for _ in range(60):
        y = y + y
    assert backward(y, x)[0].tolist() == [2.0**60]


def test_dropping_the_loss_frees_the_graph_without_the_collector():
    """Case 18: no reference cycle."""
    gc.collect()
    gc.disable()
    try:
        x, w = leaf(0.0, 1, 2, 3), Parameter(np.ones((4, 4)))
        h = ops.tanh(ops.linear(x, w))
        loss = ops.sum(ops.softmax(h) * ops.exp(h) + ops.max(h) + ops.norm(h[1:]) + ops.relu(h))
        refs = [weakref.ref(node) for node in walk([loss]).nodes]
        refs += [weakref.ref(base_of(item.array)) for ref in refs for item in ref().saved if item.counter is None]
        refs.append(weakref.ref(h._array))
        backward(loss, x, w)
        del h, loss
        assert [ref() for ref in refs if ref() is not None] == []
    finally:
        gc.enable()


def test_release_frees_what_was_saved_though_the_loss_lives():
    x = leaf(1.0, 2.0)
    loss = ops.sum(ops.exp(ops.sin(x)))
    refs = [weakref.ref(item.array) for node in walk([loss]).nodes for item in node.saved if item.array is not x._array]
    assert refs
    backward(loss, x, retain=False)
    assert all(ref() is None for ref in refs)
    assert loss.item() > 0


def test_operations_keep_only_what_a_derivative_needs():
    data, w = Tensor(np.ones((2, 3))), Parameter(np.ones((4, 3)))
    saved = ops.linear(data, w).node.saved
    assert saved[0].array is data._array
    assert saved[1] is None
    assert (data[0] * 2.0).node is None
    assert [item.array.shape for item in (w * 2.0).node.saved if item is not None] == [()]
    assert (w + w).node.saved == ()


def test_observers_see_arguments_of_recorded_operations():
    """Clause R1."""
    w, frozen, x = Parameter(np.ones(2)), Parameter(np.ones(2), requires_grad=False), Tensor(np.ones(2))
    seen = []
    first = observe_uses(lambda inputs: seen.extend(id(tensor) for tensor in inputs))
    second = observe_uses(lambda inputs: None)
    first.__enter__()
    second.__enter__()
    x * w
    x + frozen
    w.detach()
    ops.greater(w, 0)
    assert seen.count(id(w)) == 3
    assert id(frozen) in seen
    first.__exit__(None, None, None)
    seen.clear()
    x * w
    second.__exit__(None, None, None)
    assert seen == []
    with observe_uses(lambda inputs: seen.extend(inputs)), no_grad():
        x * w
    assert seen == []


def test_saved_hooks_replace_what_is_kept():
    x = leaf(1.0, 2.0)
    packed, unpacked = [], []

    def pack(saved):
        packed.append(saved.array.copy())
        return len(packed) - 1

    def unpack(number):
        unpacked.append(number)
        pass_cache()["seen"] = True
        return Saved(packed[number])

    with saved_hooks(pack, unpack):
        h = ops.exp(x)
        with saved_hooks(lambda saved: saved, lambda saved: saved):
            inner = ops.sin(h)
        loss = ops.sum(inner * h)
    gone = weakref.ref(inner._array)
    del inner
    assert gone() is None
    expected = np.exp([1, 2]) * (np.cos(np.exp([1, 2])) * np.exp([1, 2]) + np.sin(np.exp([1, 2])))
    for _ in range(2):
        np.testing.assert_allclose(backward(loss, x)[0], expected)
    assert unpacked == [1, 2, 0] * 2
    with pytest.raises(RuntimeError, match="no backward"):
        pass_cache()
    saved = Saved(np.ones(1))
    assert keep(saved) is saved


def test_storages_are_logged():
    x = leaf(*np.ones(100))
    with log_storages() as log:
        y = ops.relu(x * 2.0) * 3.0
        z = y[::2]
    alive = {id(ref()): ref().nbytes for ref in log if ref() is not None}
    # relu keeps its own result; y is held here; z is a view of y; the constants 2 and 3 are one element each.
    assert sorted(alive.values()) == [8, 8, 800, 800]
    del y, z
    assert sum(ref().nbytes for ref in log if ref() is not None) == 0
    with log_storages() as outer, log_storages() as inner:
        kept = x + 1.0
    assert len(outer) == len(inner)
    assert kept.requires_grad


def test_two_losses_on_one_trunk():
    """Case 7."""
    w, a, b = leaf(2.0), leaf(3.0), leaf(5.0)
    t = w * 4.0
    l1, l2 = ops.sum(a * t), ops.sum((b * t) ** 2)
    found = vector_jacobian_product([l1, l2], [ONE, ONE], [w, a, b])
    assert [gradient.tolist() for gradient in found] == [[1612], [8], [640]]
    assert backward(l2, a) == [None]


def test_threads_on_one_trunk_give_the_serial_bits():
    w = Parameter(np.linspace(-1, 1, 50))
    trunk = ops.tanh(w * w)
    losses = [ops.sum(trunk * float(k)) for k in range(4)]
    expected = [backward(loss, w)[0] for loss in losses]
    found = {}

    def work(k):
        for _ in range(50):
            found[k] = backward(losses[k], w)[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[k], expected[k]) for k in range(4))


def test_nodes_are_small_and_have_no_instance_dictionary():
    assert not hasattr(Node("x", None, (), (), None), "__dict__")

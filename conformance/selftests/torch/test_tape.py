"""The pure engine: walk, vector-Jacobian product, release and watch (clauses G2, G3, G7, G9, G14, G16)."""

import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from unigrad_torch import tape

from unigrad.errors import GraphReleasedError, NoGraphError, StaleGraphError, UnsupportedError


def backward(loss, targets, retain=False, cotangents=(None,)):
    graph = tape.trace([loss])
    found = tape.vjp(graph, cotangents, targets, retain=retain, create=False)
    if not retain:
        tape.release(graph)
    return found


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def test_leaves_are_the_very_objects_and_each_once():
    a, b, frozen = leaf(1.0), leaf(2.0), torch.tensor([3.0])
    graph = tape.trace([(a * b * a * frozen).sum(), b.sum()])
    assert {id(found) for found in graph.leaves} == {id(a), id(b)}
    assert len(graph.leaves) == 2


def test_dependence_is_structural():
    """Case 70: multiplied by zero is connected, a stopped gradient is not."""
    a, b, c = leaf(1.0), leaf(2.0), leaf(3.0)
    graph = tape.trace([(a * a + 0 * b + c.detach()).sum()])
    assert {id(found) for found in graph.leaves} == {id(a), id(b)}


def test_a_leaf_can_be_the_loss():
    a = leaf(2.0)
    assert backward(a, [a])[0].tolist() == [1.0]


@pytest.mark.parametrize("graph", [lambda a: (a * a).sum(), lambda a: a.sum(), lambda a: (a + 1).sum()])
def test_a_released_graph_is_refused_though_torch_allows_it(graph):
    """Case 11: torch notices the second backward of the first of these only."""
    a = leaf(1.0, 2.0)
    loss = graph(a)
    backward(loss, [a])
    assert tape.trace([loss]).released
    assert tape.trace([loss * 2]).released, "a head made later on the released trunk"
    with pytest.raises(GraphReleasedError):
        backward(loss, [a])


def test_an_add_only_trunk_is_released_for_another_loss():
    """A mark on the head alone would let the second loss pass."""
    a, b = leaf(1.0), leaf(2.0)
    trunk = a + b
    first, second = (trunk + 1).sum(), (trunk + 2).sum()
    backward(first, [a])
    assert tape.trace([second]).released


def test_leaves_are_not_released():
    a = leaf(1.0)
    backward((a * a).sum(), [a])
    assert tape.trace([(a * 3).sum()]).released is None


def test_marks_die_with_their_graph():
    """Clause G15; with no mark alive the walk does not look for any."""
    a = leaf(1.0)
    before = tape.living_marks()
    loss = (a * a).sum()
    backward(loss, [a])
    assert tape.living_marks() == before + 2
    del loss
    assert tape.living_marks() == before


def test_a_release_by_torch_itself_is_translated():
    a = leaf(1.0)
    loss = (a * a).sum()
    loss.backward()
    with pytest.raises(GraphReleasedError, match="retain_graph"):
        backward(loss, [a])


def test_native_gradients_are_untouched():
    a = leaf(1.0)
    a.grad = kept = torch.tensor([7.0])
    backward((a * a).sum(), [a])
    assert a.grad is kept
    assert kept.tolist() == [7.0]


def test_a_failing_call_changes_no_gradient_of_anything():
    """Facts A1.2: native backward changes the gradient of b before it fails at a."""
    a, b = leaf(1.0), leaf(1.0)
    loss = (b + a * a).sum()
    backward(loss, [a, b])
    with pytest.raises(GraphReleasedError):
        backward(loss, [a, b])
    assert (a.grad, b.grad) == (None, None)


def test_a_value_changed_in_place_is_an_error():
    a = leaf(1.0, 2.0)
    b = torch.sigmoid(a)
    b[1] = 2.0
    with pytest.raises(StaleGraphError, match="forward again"):
        backward(b.sum(), [a])


def test_a_parameter_frozen_after_the_forward_gets_none():
    a, b = leaf(1.0), leaf(2.0)
    loss = (a * b).sum()
    b.requires_grad_(False)
    first, second = backward(loss, [a, b])
    assert first.tolist() == [2.0]
    assert second is None


def test_several_losses_are_the_gradient_of_their_sum():
    w, a, b = leaf(2.0), leaf(3.0), leaf(5.0)
    t = w * 4
    graph = tape.trace([(a * t).sum(), ((b * t) ** 2).sum()])
    found = tape.vjp(graph, [None, None], [w, a, b], retain=False, create=False)
    assert [value.item() for value in found] == [1612, 8, 640]  # case 7


def test_a_gradient_is_never_the_cotangent_itself():
    a = leaf(1.0, 2.0)
    vector = torch.tensor([5.0, 7.0])
    (found,) = backward(a.view(1, 2).view(2), [a], cotangents=[vector])
    vector.fill_(-99)
    assert found.tolist() == [5.0, 7.0]


def test_losses_without_a_graph_are_refused():
    a = leaf(1.0)
    for loss in (torch.tensor(1.0), (a * a).sum().detach()):
        with pytest.raises(NoGraphError):
            tape.trace([loss])


def test_a_reentrant_checkpoint_is_refused_by_name():
    layer = nn.Linear(2, 2)
    y = checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=True)
    with pytest.raises(UnsupportedError, match="use_reentrant=False"):
        tape.trace([y.sum()])


def test_the_other_checkpoint_of_torch_is_served():
    layer = nn.Linear(2, 1, bias=False)
    y = checkpoint(layer, torch.tensor([[3.0, 4.0]]), use_reentrant=False)
    assert backward(y.sum(), [layer.weight])[0].tolist() == [[3.0, 4.0]]


def test_tensor_hooks_act():
    a = leaf(1.0)
    a.register_hook(lambda gradient: gradient * 10)
    assert backward((a * 2).sum(), [a])[0].tolist() == [20.0]


def test_watch_of_data_is_a_leaf_and_alters_nothing():
    x = torch.tensor([1.0, 2.0])
    twin = tape.watch(x)
    assert not x.requires_grad
    assert backward((twin * 3).sum(), [twin])[0].tolist() == [3.0, 3.0]


def test_watch_of_a_computed_tensor_stays_connected():
    a = leaf(2.0)
    h = a * a
    twin = tape.watch(h)
    assert [value.tolist() for value in backward((twin * 3).sum(), [a, twin])] == [[12.0], [3.0]]


def test_watch_where_nothing_is_recorded_still_gets_its_gradient():
    """Facts A5: a view made under no_grad looks like a leaf and never gets a gradient."""
    a = leaf(2.0)
    with torch.no_grad():
        twin = tape.watch(a)
    assert backward((twin * 3).sum(), [twin])[0].tolist() == [3.0]


def test_watch_refuses_what_has_no_gradient():
    with pytest.raises(TypeError, match="int64"):
        tape.watch(torch.tensor([1]))


def test_two_threads_on_a_shared_trunk_give_the_serial_bits():
    torch.manual_seed(0)
    trunk, heads = nn.Linear(8, 8), [nn.Linear(8, 4), nn.Linear(8, 4)]
    inputs = [torch.randn(16, 8), torch.randn(16, 8)]

    def once(index):
        parameters = [trunk.weight, *heads[index].parameters()]
        return backward(heads[index](trunk(inputs[index]).tanh()).square().sum(), parameters)

    serial = [once(index) for index in (0, 1)]
    wrong = []

    def run(index):
        region = tape.open_region()
        for _ in range(50):
            if not all(map(torch.equal, once(index), serial[index])):
                wrong.append(index)
        tape.close_region(region)

    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

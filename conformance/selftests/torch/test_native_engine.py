"""The native engine in one process: hooks after accumulation, optimizers in backward, what it must leave alone (clauses G1 to G18)."""

import copy
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as native

import unigrad
from unigrad.errors import ArgumentError, GraphReleasedError, StaleGraphError, UnsupportedError

X = torch.tensor([[1.0, 2.0], [3.0, 5.0]])


def collector_of(block, accumulate="write", **options):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **options)


def two_layers(hook=lambda parameter: None, bias=True):
    """A model with a hook after accumulation on its first weight."""
    model = nn.Sequential(nn.Linear(2, 2, bias=bias), nn.Tanh(), nn.Linear(2, 1, bias=bias))
    if hook is not None:
        model[0].weight.register_post_accumulate_grad_hook(hook)
    return model


def plain_gradients(model, x=X):
    """Gradients of the sum by torch alone, of a copy without hooks."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter._post_accumulate_grad_hooks = None
        parameter.grad = None
    twin(x).sum().backward()
    return {name: parameter.grad for name, parameter in twin.named_parameters()}


def same(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(("accumulate", "times"), [("write", 1), ("add", 3)])
def test_gradients_are_those_of_a_plain_backward(accumulate, times):
    """G1, G2, G13: bit for bit, and the hook sees the gradient of each backward."""
    seen = []
    model = two_layers(lambda parameter: seen.append(parameter.grad.clone()))
    wanted = plain_gradients(model)
    seen.clear()
    with collector_of(model, accumulate) as collector:
        assert collector.engine == "native"
        loss = model(X).sum()
        for retain in (True, True, False):
            collector.backward(loss, retain_graph=retain)
        with pytest.raises(GraphReleasedError):
            collector.backward(loss)
    for name, value in wanted.items():  # sums of three equal values, rounded twice at most
        torch.testing.assert_close(collector.gradients[name], times * value, rtol=3e-7, atol=0)
    assert len(seen) == 3
    assert all(torch.equal(value, wanted["0.weight"]) for value in seen)
    assert collector.usage.reached == tuple(wanted)


def test_hooks_that_go_and_come_during_a_backward():
    """G13: a hook that removes itself is gone, the others stay in their order, one that is new runs from the next backward on."""
    ran = []
    model = two_layers(None)
    leaf = model[0].weight

    def once(parameter):
        ran.append("once")
        handle.remove()
        model[2].weight.register_post_accumulate_grad_hook(lambda parameter: ran.append("new"))

    def first(parameter):
        ran.append("first")

    def last(parameter):
        ran.append("last")

    leaf.register_post_accumulate_grad_hook(first)
    handle = leaf.register_post_accumulate_grad_hook(once)
    leaf.register_post_accumulate_grad_hook(last)
    wanted = plain_gradients(model)
    for _ in range(2):
        with collector_of(model) as collector:
            collector.backward(model(X).sum())
            same(collector.gradients, wanted)
    assert ran == ["first", "once", "last", "new", "first", "last"]
    assert list(leaf._post_accumulate_grad_hooks.values()) == [first, last]


def test_own_and_foreign_slots_are_as_they_were():
    """G4: the very tensors, with their values; hooks of foreign parameters do not run."""
    model, other = two_layers(), nn.Linear(1, 1)
    other.weight.register_post_accumulate_grad_hook(lambda parameter: pytest.fail("a foreign hook ran"))
    slots = {parameter: torch.full_like(parameter, 7) for parameter in (*model.parameters(), *other.parameters())}
    for parameter, gradient in slots.items():
        parameter.grad = gradient
    with collector_of(model) as collector:
        collector.backward(other(model(X)).sum())
    assert collector.usage.outside == 2
    for parameter, gradient in slots.items():
        assert parameter.grad is gradient
        assert torch.equal(gradient, torch.full_like(gradient, 7))


def clear(parameter):
    parameter.grad = None


def clear_in_place(parameter):
    parameter.grad.zero_()


@pytest.mark.parametrize("cleared", [clear, clear_in_place])
@pytest.mark.parametrize("stepping", ["0.weight", "all"])
def test_an_optimizer_that_steps_in_backward(cleared, stepping):
    """G13: parameters end where torch's own loop puts them, and the gradient that was used is collected."""
    models = [two_layers(None) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        for name, parameter in model.named_parameters():
            if stepping in (name, "all"):
                optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.5)

                def step(parameter, optimizer=optimizer):
                    optimizer.step()
                    cleared(parameter)

                parameter.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        wanted = plain_gradients(models[0])
        models[0](X).sum().backward()
        models[0].zero_grad()
        with collector_of(models[1]) as collector:
            collector.backward(models[1](X).sum())
        same(collector.gradients, wanted)
        assert all(parameter.grad is None for parameter in models[1].parameters())
        same(dict(models[1].named_parameters()), dict(models[0].named_parameters()))


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("hooks", [1, 2])
def test_what_hooks_make_of_a_gradient_before_they_use_it_is_collected(in_place, hooks):
    """As a reduction written by hand does: double it, then step with it and clear it."""
    model = two_layers(None)
    weight = model[0].weight
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def double(parameter):
        if in_place:
            parameter.grad.mul_(2)
        else:
            parameter.grad = 2 * parameter.grad

    def use(parameter):
        optimizer.step()
        parameter.grad = None

    if hooks == 2:
        weight.register_post_accumulate_grad_hook(double)
        weight.register_post_accumulate_grad_hook(use)
    elif in_place:

        def both(parameter):
            double(parameter)
            use(parameter)

        weight.register_post_accumulate_grad_hook(both)
    else:
        weight.register_post_accumulate_grad_hook(double)
    wanted = plain_gradients(model)
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert torch.equal(collector.gradients["0.weight"], 2 * wanted["0.weight"])
    assert torch.equal(collector.gradients["2.weight"], wanted["2.weight"])


def test_a_hook_that_masks_leaves_zeros():
    model = two_layers(clear_in_place)
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert collector.gradients["0.weight"].tolist() == [[0, 0], [0, 0]]


def test_a_hook_that_keeps_the_gradient_has_its_own():
    """G7."""
    kept = []
    model = two_layers(lambda parameter: kept.append(parameter.grad))
    wanted = plain_gradients(model)
    kept.clear()
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    kept[0].zero_()
    same(collector.gradients, wanted)


class Stop(Exception):
    pass


def fail(parameter):
    raise Stop


@pytest.mark.parametrize("where", range(4))
def test_a_hook_that_fails_half_way_changes_nothing(where):
    """G15, G3: every slot, the hooks and the collector are as before, and a later forward is served."""
    model = two_layers(None)
    parameters = list(model.parameters())
    with collector_of(model, "add") as collector:
        collector.backward(model(X).sum())
        before = collector.gradients
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
    slots = [parameter.grad for parameter in parameters]
    handle = parameters[where].register_post_accumulate_grad_hook(fail)
    hooks = dict(parameters[where]._post_accumulate_grad_hooks)
    with collector_of(model, "add") as collector:
        with pytest.raises(Stop):
            collector.backward(model(X).sum())
        assert not collector.gradients
        assert not collector.usage.reached
        assert [parameter.grad for parameter in parameters] == slots
        assert all(torch.equal(slot, torch.ones_like(slot)) for slot in slots)
        assert dict(parameters[where]._post_accumulate_grad_hooks) == hooks
        handle.remove()
        collector.backward(model(X).sum())
    same(collector.gradients, dict(before))


def test_a_graph_that_torch_released_and_a_changed_value():
    """G3, G14: torch has written some slots when it finds out."""
    model = two_layers()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with collector_of(model) as collector:
        hidden = model[0](X)
        first, second = hidden.square().sum(), (model[2](torch.tanh(hidden)) + hidden.square().sum()).sum()
        first.backward()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        with pytest.raises(GraphReleasedError):
            collector.backward(second)
        loss = model(X).sum()
        with torch.no_grad():
            model[2].weight.mul_(2)
        with pytest.raises(StaleGraphError):
            collector.backward(loss)
        assert not collector.gradients
    assert all(torch.equal(parameter.grad, torch.ones_like(parameter)) for parameter in model.parameters())


def test_a_converted_model_is_stale():
    """G14: torch finds no gradient for a converted parameter and says nothing."""
    model = two_layers()
    with collector_of(model) as collector:
        loss = model(X).sum()
        model.double()
        with pytest.raises(StaleGraphError, match="converted"):
            collector.backward(loss)
    assert not collector.gradients


def test_a_hook_registered_after_entering():
    """G13: the pure engine would not run it; the native one runs it."""
    seen = []
    model = two_layers(None)
    with collector_of(model) as collector:
        loss = model(X).sum()
        handle = model[0].weight.register_post_accumulate_grad_hook(seen.append)
        with pytest.raises(UnsupportedError, match="enter a new collector"):
            collector.backward(loss)
        handle.remove()
        collector.backward(loss)
    assert collector.engine == "pure"
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    with collector_of(model) as collector:
        model[2].weight.register_post_accumulate_grad_hook(seen.append)
        collector.backward(model(X).sum())
    assert sorted(map(id, seen)) == sorted([id(model[0].weight), id(model[2].weight)])


def test_what_is_refused():
    """G17, and a reentrant checkpoint, whose inner parameters cannot be seen, so that foreign ones could not be restored."""
    model = two_layers()
    with collector_of(model) as collector:
        with pytest.raises(UnsupportedError, match="create_graph"):
            collector.backward(model(X).sum(), create_graph=True)
        x = collector.watch(X, "x")
        with pytest.raises(UnsupportedError, match="use_reentrant=False"):
            collector.backward(native.checkpoint(model, x, use_reentrant=True).sum())
        collector.backward(native.checkpoint(model, x, use_reentrant=False).sum())
    same(collector.gradients, plain_gradients(model))


@pytest.mark.parametrize("register", ["register_hook", "register_prehook"])
def test_hooks_on_the_accumulating_node(register):
    """G13: libraries for several processes put them there; neither engine could vouch for what they begin."""
    model = two_layers(None)
    node = torch.autograd.graph.get_gradient_edge(model[2].weight).node
    handle = getattr(node, register)(lambda *gradients: None)
    with pytest.raises(UnsupportedError, match="'weight' has a hook"):
        collector_of(model).__enter__()
    handle.remove()
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert collector.engine == "pure"


def test_looking_for_such_hooks_is_no_use_of_a_parameter():
    """R1: of a collector that is open meanwhile."""
    model = nn.Sequential(two_layers(None))
    with collector_of(model[0]) as outer, collector_of(model):
        pass
    assert len(outer.usage.unused) == 4
    assert outer.block.registered == ()


def test_a_hook_on_several_parameters():
    """G13: torch can't run it for gradients of leaves, and says so in words of its own."""
    model = two_layers(None)
    handle = torch.autograd.graph.register_multi_grad_hook(tuple(model.parameters()), lambda gradients: None)
    with collector_of(model) as collector:
        with pytest.raises(UnsupportedError, match="register_multi_grad_hook"):
            collector.backward(model(X).sum())
        handle.remove()
        collector.backward(model(X).sum())
    same(collector.gradients, plain_gradients(model))


def test_watched_tensors_alone_run_no_hook():
    """G9: nothing is accumulated, so a graph of gradients is possible too."""
    model = two_layers(lambda parameter: pytest.fail("ran"))
    wanted = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(wanted).sum(), wanted)
    with collector_of(model, parameters=False) as collector:
        x = collector.watch(X, "x")
        collector.backward(model(x).sum(), create_graph=True)
        assert collector.input_gradients["x"].requires_grad
    assert torch.equal(collector.input_gradients["x"].detach(), gradient)
    assert not collector.gradients


def test_watched_leaves_and_inner_values():
    """G9: with the parameters, in one backward; nothing is left in the slots of what watch returned."""
    model = two_layers()
    with collector_of(model, "add") as collector:
        x = collector.watch(X, "x")
        hidden = collector.watch(model[0](x), "hidden")
        loss = model[2](torch.tanh(hidden)).sum()
        collector.backward(loss, retain_graph=True)
        collector.backward(loss)
    inner = model[0](X).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model[2](torch.tanh(inner)).sum(), inner)
    assert torch.equal(collector.input_gradients["hidden"], 2 * gradient)
    torch.testing.assert_close(collector.input_gradients["x"], 2 * gradient @ model[0].weight.detach())
    assert x.grad is None
    assert hidden.grad is None


def test_weights_are_means_over_items():
    """G11, also of nothing."""
    model = two_layers()
    with collector_of(model, "add") as collector:
        for part in X.split(1):
            collector.backward(model(part).mean(), weight=len(part))
        collector.backward(model(X).mean() * float("nan"), weight=0)
    with collector_of(two_layers(None)) as other:
        other.block.native.load_state_dict(model.state_dict())
        other.backward(other.block.native(X).mean())
    for name, value in other.gradients.items():  # two terms, a product and a quotient
        torch.testing.assert_close(collector.gradients[name], value, rtol=1e-6, atol=0)


def test_mappings_and_joined_blocks():
    """B7: a mapping of hooked tensors is served natively; two engines are not mixed."""
    model, other, bare = two_layers(), two_layers(), two_layers(None)
    with collector_of(dict(model.named_parameters())) as collector:
        collector.backward(model(X).sum())
    assert collector.engine == "native"
    same(collector.gradients, plain_gradients(model))
    with collector_of({"a": unigrad.wrap(model), "b": unigrad.wrap(other)}) as collector:
        collector.backward(model(X).sum() + other(X).sum())
    same(
        collector.gradients,
        {
            f"{prefix}.{name}": value
            for prefix, part in (("a", model), ("b", other))
            for name, value in plain_gradients(part).items()
        },
    )
    with pytest.raises(ArgumentError, match=r"native.*pure"):
        collector_of(unigrad.join(a=model, b=bare)).__enter__()


def test_two_threads_on_shared_parameters():
    """G16: the serial result, though both exchange the same slots."""
    model = two_layers(lambda parameter: time.sleep(0.001))  # lets the other thread run while the slots are exchanged
    results = {}

    def work(index):
        with collector_of(model, "add") as collector:
            for _ in range(20):
                collector.backward(model(X * index).sum())
        results[index] = collector.gradients

    threads = [threading.Thread(target=work, args=(index,)) for index in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    threaded = {index: dict(found) for index, found in results.items()}
    for index in (1, 2):
        work(index)
        same(threaded[index], dict(results[index]))
    assert all(parameter.grad is None for parameter in model.parameters())


class GivesItsData(torch.autograd.Function):
    """A sum of products whose backward returns a view of the very memory that it was given."""

    @staticmethod
    def forward(ctx, weight, data):
        ctx.data = data
        return (weight * data).sum()

    @staticmethod
    def backward(ctx, cotangent):
        return ctx.data.view(-1), None


@pytest.mark.parametrize("hooked", [True, False])
def test_gradients_in_memory_of_the_user(hooked):
    """G7: of an own operation, and of a cotangent that passes unchanged."""
    weight, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    (weight if hooked else other).register_post_accumulate_grad_hook(lambda parameter: None)
    data, cotangent = torch.tensor([3.0, 4.0]), torch.tensor([5.0, 6.0])
    with collector_of({"w": weight, "o": other}) as collector:
        collector.backward(GivesItsData.apply(weight, data) + other.sum())
        data.fill_(9)
        assert collector.gradients["w"].tolist() == [3, 4]
        collector.backward(weight.view(-1), cotangent=cotangent)
        cotangent.fill_(9)
    assert collector.gradients["w"].tolist() == [5, 6]


def test_a_sparse_gradient_is_dense():
    """G10."""
    table = nn.Embedding(4, 1, sparse=True)
    table.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with collector_of(table, "add") as collector:
        for _ in range(2):
            collector.backward(table(torch.tensor([1, 1, 2])).sum())
    assert collector.gradients["weight"].flatten().tolist() == [0, 4, 2, 0]


def test_unused_stays_absent_and_frozen_gets_none():
    """G6, R2."""
    model = nn.ModuleDict({"used": two_layers(), "other": nn.Linear(2, 1), "frozen": nn.Linear(2, 2)})
    model["frozen"].requires_grad_(False)
    with collector_of(model) as collector:
        model["other"](X)
        collector.backward(model["used"](model["frozen"](X)).sum())
    assert set(collector.gradients) == {f"used.{name}" for name, _ in model["used"].named_parameters()}
    assert collector.usage.disconnected == ("other.weight", "other.bias")
    assert collector.usage.frozen == ("frozen.weight", "frozen.bias")


@pytest.mark.parametrize("wrapped", [unigrad.checkpoint, lambda layer: unigrad.microbatch(layer, 1)])
def test_regions_are_recomputed_under_it(wrapped):
    """C1, M1: sums of two parts, in another order than the whole."""
    model = two_layers()
    wanted = plain_gradients(model)
    model[0] = wrapped(model[0])
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert collector.engine == "native"
    for name, value in wanted.items():
        torch.testing.assert_close(collector.gradients[name], value, rtol=1e-6, atol=1e-7)


def test_gradients_are_handed_on():
    """G18: to the slots, and to an optimizer."""
    model = two_layers()
    wanted = plain_gradients(model)
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
        collector.write_back()
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        collector.apply(unigrad.Optimizer(model, lambda parameters: torch.optim.SGD(parameters, lr=0.5)))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, wanted[name])
        assert torch.equal(parameter.detach(), before[name] - 0.5 * wanted[name])


def test_hooks_are_left_as_they_were():
    """G15: the very hooks, in their order, also one that removes itself."""
    model = two_layers()
    weight = model[0].weight
    first = next(iter(weight._post_accumulate_grad_hooks))
    handle = weight.register_post_accumulate_grad_hook(lambda parameter: None)
    weight.register_post_accumulate_grad_hook(lambda parameter: None)
    kept = list(weight._post_accumulate_grad_hooks.items())
    for _ in range(2):
        with collector_of(model) as collector:
            collector.backward(model(X).sum().detach() * 0 + model(X).sum())
    assert list(weight._post_accumulate_grad_hooks.items()) == kept
    handle.remove()
    assert list(weight._post_accumulate_grad_hooks) == [first, kept[2][0]]

"""Models in DistributedDataParallel and fully_shard, in a group of one process: served natively, or refused (G13)."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.nn.parallel import DistributedDataParallel

import unigrad
from unigrad.errors import StaleGraphError, UnreducedError, UnsupportedError

X = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
pytestmark = pytest.mark.usefixtures("group")


def collector_of(block, accumulate="write", **options):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **options)


def layers():
    return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))


def gradients_of(model, loss_of=lambda output: output.sum()):
    """Gradients by torch alone; the slots are emptied."""
    model.zero_grad()
    loss_of(model(X)).backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def same(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def sharded(model):
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole(found):
    return {name: value.full_tensor() for name, value in found.items()}


@pytest.mark.parametrize(
    ("part", "prefix"),
    [
        (lambda model: model, ""),
        (lambda model: model.module, ""),
        (lambda model: model.module[0], "0."),
        (lambda model: nn.Sequential(model), ""),
        (lambda model: dict(model.module.named_parameters()), ""),
    ],
    ids=["itself", "inner", "a-layer", "as-a-part", "mapping"],
)
@pytest.mark.parametrize("copied", [False, True], ids=["made", "copied"])
def test_whatever_of_a_wrapped_model_is_collected_is_served_natively(part, prefix, copied):
    """G13, G4: the wrapper averages all its parameters, but only the block's gradients are collected and no slot is changed."""
    model = DistributedDataParallel(layers())
    model = copy.deepcopy(model) if copied else model
    block = part(model)
    wanted = gradients_of(copy.deepcopy(model.module))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    with collector_of(block) as collector:
        assert collector.engine == "native"
        collector.backward(model(X).sum())
    assert all(torch.equal(parameter.grad, torch.full_like(parameter, 7)) for parameter in model.parameters())
    within = "0." if isinstance(block, nn.Sequential) and block is not model.module else ""
    same(
        collector.gradients,
        {within + name.removeprefix(prefix): value for name, value in wanted.items() if name.startswith(prefix)},
    )


def test_wrapped_after_entering():
    model = layers()
    with collector_of(model) as collector:
        outer = DistributedDataParallel(model)
        with pytest.raises(UnsupportedError, match="enter a new collector"):
            collector.backward(outer(X).sum())
        assert not collector.gradients


def test_sharded_after_entering():
    model = layers()
    with collector_of(model) as collector:
        sharded(model)
        with pytest.raises(UnsupportedError, match="enter a new collector"):
            collector.backward(model(X).sum())
        assert not collector.gradients


@pytest.mark.parametrize(
    "options", [{}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}]
)
def test_a_second_backward_is_refused_and_a_second_forward_served(options):
    """G13: torch averages once for each forward and says nothing of the second backward."""
    model = DistributedDataParallel(layers(), **options)
    wanted = gradients_of(copy.deepcopy(model.module))
    for _ in range(3):
        with collector_of(model, "add") as collector:
            outputs = model(X)
            loss, other = outputs.sum(), (2 * outputs).sum()
            collector.backward(loss, retain_graph=True)
            first = collector.gradients
            for later in (loss, other):  # before anything runs
                with pytest.raises(UnreducedError, match="once for each forward, and has done so"):
                    collector.backward(later, retain_graph=True)
            same(collector.gradients, dict(first))
            collector.backward(model(X).sum())
        same(first, wanted)
        same(collector.gradients, {name: 2 * value for name, value in wanted.items()})
        assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_wrapped_anew():
    """G13: the wrapper that ran the forward averages, while the other one lives."""
    first = DistributedDataParallel(layers())
    second = DistributedDataParallel(first.module, find_unused_parameters=True)
    wanted = gradients_of(copy.deepcopy(first.module))
    for model in (second, first, second):
        with collector_of(first) as collector:
            collector.backward(model(X).sum(), retain_graph=True)
        same(collector.gradients, wanted)
    loss = model(X).sum()
    with collector_of(second) as collector:
        collector.backward(loss, retain_graph=True)
        with pytest.raises(UnreducedError):
            collector.backward(loss)


def test_two_forwards_and_two_backwards():
    """G13: the second backward is not averaged, though its graph is new."""
    model = DistributedDataParallel(layers())
    wanted = gradients_of(model.module)
    with collector_of(model, "add") as collector:
        first, second = model(X).sum(), model(X).sum()
        collector.backward(first)
        with pytest.raises(UnreducedError, match="once for each forward"):
            collector.backward(second)
        same(collector.gradients, wanted)
        collector.backward(model(X).sum() + model(X).sum())
    same(collector.gradients, {name: 3 * value for name, value in wanted.items()})


def test_gradients_that_lie_in_the_memory_of_the_reduction():
    """G7, G4: neither what was collected nor what stood in the slots follows the next reduction."""
    model = DistributedDataParallel(layers(), gradient_as_bucket_view=True)
    for _ in range(3):  # the memory is laid out anew after the first step
        model.zero_grad()
        model(X).sum().backward()
    slots = [(parameter, parameter.grad, parameter.grad.clone()) for parameter in model.parameters()]
    with collector_of(model) as collector:
        collector.backward((3 * model(X)).sum())
        first = collector.gradients
        collector.backward((5 * model(X)).sum())
        second = collector.gradients
    for parameter, slot, value in slots:
        assert parameter.grad is slot
        assert torch.equal(slot, value)
    for factor, found in ((3, first), (5, second)):
        same(found, gradients_of(model.module, lambda output, factor=factor: (factor * output).sum()))


def test_an_unused_parameter():
    """G13: without find_unused_parameters torch would leave others unaveraged; that is told before anything runs."""
    model = nn.ModuleDict({"used": layers(), "other": nn.Linear(2, 1)})
    model.forward = lambda x: model["used"](x)
    outer = DistributedDataParallel(model)
    with collector_of(outer) as collector:
        with pytest.raises(UnreducedError, match=r"other\.weight, other\.bias.*find_unused_parameters"):
            collector.backward(outer(X).sum())
        assert not collector.gradients
    del outer
    outer = DistributedDataParallel(model, find_unused_parameters=True)
    for _ in range(2):
        with collector_of(outer) as collector:
            collector.backward(outer(X).sum())
        assert set(collector.gradients) == {f"used.{name}" for name, _ in model["used"].named_parameters()}
        assert collector.usage.unused == ("other.weight", "other.bias")


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent):
        return 2 * cotangent


def test_an_unused_parameter_behind_an_own_operation():
    """G13: what the graph cannot tell beforehand is told afterwards, the slots are restored, and the next step is served."""
    model = nn.ModuleDict({"used": layers(), "other": nn.Linear(2, 1)})
    model.forward = lambda x, whole: Twice.apply(model["used"](x)) + (model["other"](x) if whole else 0)
    outer = DistributedDataParallel(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    with collector_of(outer) as collector:
        with pytest.raises(UnreducedError, match="find_unused_parameters"):
            collector.backward(outer(X, False).sum())
        assert not collector.gradients
        collector.backward(outer(X, True).sum())
        assert len(collector.gradients) == 6
    assert all(torch.equal(parameter.grad, torch.full_like(parameter, 7)) for parameter in model.parameters())


def test_a_failing_hook_leaves_the_wrapper_usable():
    """G15."""
    model = DistributedDataParallel(layers())
    wanted = gradients_of(model.module)

    def fail(parameter):
        raise KeyError

    handle = model.module[2].weight.register_post_accumulate_grad_hook(fail)
    with collector_of(model) as collector:
        with pytest.raises(KeyError):
            collector.backward(model(X).sum())
        assert all(parameter.grad is None for parameter in model.parameters())
        handle.remove()
        collector.backward(model(X).sum())
    same(collector.gradients, wanted)


def test_hooks_see_what_they_see_under_torch():
    """G13: before the average; the average is collected, and taking the gradient away before it is an error."""
    model = DistributedDataParallel(layers())
    seen = []
    handle = model.module[0].weight.register_post_accumulate_grad_hook(
        lambda parameter: seen.append(parameter.grad.clone())
    )
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert torch.equal(seen[0], collector.gradients["0.weight"])
    handle.remove()

    def take(parameter):
        parameter.grad = None

    model.module[0].weight.register_post_accumulate_grad_hook(take)
    with collector_of(model) as collector, pytest.raises(UnreducedError, match="before it was averaged"):
        collector.backward(model(X).sum())


def test_what_a_wrapper_cannot_do():
    """G11, G13, G17."""
    model = DistributedDataParallel(layers())
    with collector_of(model, "add") as collector:
        with pytest.raises(UnsupportedError, match="weight="):
            collector.backward(model(X).sum(), weight=2)
        with pytest.raises(UnsupportedError, match="create_graph"):
            collector.backward(model(X).sum(), create_graph=True)
    with collector_of(model) as collector, model.no_sync(), pytest.raises(UnsupportedError, match="accumulate='add'"):
        collector.backward(model(X).sum())
    model.module[0].weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(UnsupportedError, match=r"'0\.weight' is not the one it was made with"):
        collector_of(model).__enter__()
    frozen = layers()
    frozen[0].requires_grad_(False)
    model = DistributedDataParallel(frozen)
    frozen[0].requires_grad_(True)
    with collector_of(model) as collector, pytest.raises(UnsupportedError, match="were frozen when it was made"):
        collector.backward(model(X).sum())


def test_gradients_of_inputs_alone_reduce_nothing():
    """G9, R2: the parameters get no gradient, and the wrapper is ready for the next step."""
    model = DistributedDataParallel(layers())
    for _ in range(2):
        with collector_of(model, parameters=False) as collector:
            x = collector.watch(X, "x")
            collector.backward(model(x).sum())
    wanted = X.clone().requires_grad_()
    model.module(wanted).sum().backward()
    assert torch.equal(collector.input_gradients["x"], wanted.grad)
    model.zero_grad()
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    same(collector.gradients, gradients_of(model.module))


@pytest.mark.filterwarnings("ignore:FSDP is switching:UserWarning")  # a group of one process
def test_the_first_generation_of_fully_sharded_models():
    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
    with pytest.raises(UnsupportedError, match="fully_shard instead"):
        collector_of(model).__enter__()


def test_a_fully_sharded_model():
    """G1, G2, G4, R2: retained graphs are reduced at each backward; names and slots are the sharded parameters'."""
    plain = layers()
    wanted = gradients_of(plain)
    model = sharded(copy.deepcopy(plain))
    other = nn.Linear(1, 1)
    for parameter in (*model.parameters(), *other.parameters()):
        parameter.grad = torch.full_like(parameter, 7)
    slots = [parameter.grad for parameter in (*model.parameters(), *other.parameters())]
    with collector_of(model, "add") as collector:
        assert collector.engine == "native"
        loss = model(X).sum() + (0 * other(model(X))).sum()
        collector.backward(loss, retain_graph=True)
        once = collector.gradients
        collector.backward(loss)
    same(whole(once), wanted)
    same(whole(collector.gradients), {name: 2 * value for name, value in wanted.items()})
    assert collector.usage.reached == tuple(wanted)
    assert collector.usage.outside == 2
    assert collector.block.registered == tuple(wanted)
    found = [parameter.grad for parameter in (*model.parameters(), *other.parameters())]
    assert all(slot is value for slot, value in zip(slots, found, strict=True))
    assert all(
        torch.equal(torch.as_tensor(unigrad.wrap(model).backend.arrays.to_numpy(slot)), torch.full(slot.shape, 7.0))
        for slot in slots
    )


@pytest.mark.parametrize("part", [0, 2])
def test_a_part_of_a_fully_sharded_model(part):
    """G4: what shares a root is reduced with it, but not collected, and its slots are put back."""
    model = sharded(layers())
    wanted = whole(gradients_of(model))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    slots = [(parameter, parameter.grad) for parameter in model.parameters()]
    with collector_of(model[part]) as collector:
        collector.backward(model(X).sum())
    same(whole(collector.gradients), {name: wanted[f"{part}.{name}"] for name in ("weight", "bias")})
    assert all(parameter.grad is slot for parameter, slot in slots)
    assert all(torch.equal(slot.full_tensor(), torch.full(slot.shape, 7.0)) for _, slot in slots)


def test_an_unused_layer_of_a_fully_sharded_model():
    """G6, R2: absent and told, in spite of the whole twins that are made of it."""
    plain = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1), nn.Linear(3, 3))
    plain.forward = lambda x: plain[2](plain[1](plain[0](x)))
    model = sharded(plain)
    with collector_of(model) as collector:
        collector.backward(plain(X).sum())
    assert set(collector.gradients) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert collector.usage.unused == ("3.weight", "3.bias")


def test_a_step_before_the_backward_of_a_fully_sharded_model():
    """G14: a backward fetches the parameters anew, so that torch would mix old activations with new weights in silence."""
    model = sharded(layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with collector_of(model, "add") as collector:
        loss = model(X).sum()
        collector.backward(loss, retain_graph=True)
        collector.write_back()
        optimizer.step()
        with pytest.raises(StaleGraphError, match="fully_shard"):
            collector.backward(loss)
        collector.backward(model(X).sum())
    optimizer.zero_grad()
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert not any(module._forward_hooks for module in model.modules() if not hasattr(module, "reshard"))
    hooks = [len(module._forward_hooks) for module in (model, model[0])]
    with collector_of(model):
        assert [len(module._forward_hooks) for module in (model, model[0])] == [count + 1 for count in hooks]
    assert [len(module._forward_hooks) for module in (model, model[0])] == hooks


def test_inputs_of_a_fully_sharded_model():
    """G9, G14: no parameter gets a gradient, a changed one is noticed, and the model is ready for the next step."""
    plain = layers()
    wanted = X.clone().requires_grad_()
    plain(wanted).sum().backward()
    plain.zero_grad()
    model = sharded(plain)
    with collector_of(model, parameters=False) as collector:
        for _ in range(2):
            x = collector.watch(X, "x")
            collector.backward(model(x).sum())
        loss = model(collector.watch(X, "later")).sum()
        unigrad.wrap(model).load_state(unigrad.wrap(model).state())
        with pytest.raises(StaleGraphError, match="fully_shard"):
            collector.backward(loss)
    assert torch.equal(collector.input_gradients["x"], wanted.grad)
    assert all(parameter.grad is None for parameter in model.parameters())
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    assert len(collector.gradients) == 4


@pytest.mark.parametrize(
    ("module", "name", "make"),
    [
        (torch.distributed.Reducer, "get_backward_stats", DistributedDataParallel),
        (FSDPState, "_reset_iter_state", sharded),
    ],
    ids=["wrapped", "sharded"],
)
def test_another_torch_says_what_it_lacks(module, name, make, monkeypatch):
    model = make(layers())
    monkeypatch.delattr(module, name)
    with pytest.raises(UnsupportedError, match=f"has no .*{name}"):
        collector_of(model).__enter__()


@pytest.mark.parametrize("setting", ["set_requires_gradient_sync", "set_is_last_backward"])
def test_settings_that_leave_gradients_unreduced(setting):
    model = sharded(layers())
    with collector_of(model, "add") as collector:
        getattr(model, setting)(False)
        loss = model(X).sum()
        with pytest.raises(UnsupportedError, match=setting):
            collector.backward(loss)
        getattr(model, setting)(True)
        collector.backward(loss)
    assert len(collector.gradients) == 4


def test_a_failing_backward_leaves_the_sharded_model_usable():
    """G15."""
    model = sharded(layers())
    wanted = whole(gradients_of(model))

    def fail(parameter):
        raise KeyError

    handle = model[0].weight.register_post_accumulate_grad_hook(fail)
    with collector_of(model) as collector:
        with pytest.raises(KeyError):
            collector.backward(model(X).sum())
        assert all(parameter.grad is None for parameter in model.parameters())
        assert not collector.gradients
        handle.remove()
        collector.backward(model(X).sum())
    same(whole(collector.gradients), wanted)


def test_an_optimizer_in_backward_of_a_sharded_model():
    """G13."""
    model = sharded(layers())
    twin = sharded(layers())
    twin.load_state_dict(model.state_dict())
    wanted = whole(gradients_of(model))
    for one in (model, twin):
        for parameter in one.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def step(parameter, optimizer=optimizer):
                optimizer.step()
                parameter.grad = None

            parameter.register_post_accumulate_grad_hook(step)
    twin(X).sum().backward()
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    same(whole(collector.gradients), wanted)
    same(whole(dict(model.named_parameters())), whole(dict(twin.named_parameters())))


def test_arithmetic_and_state_of_sharded_gradients():
    """B5, G5, G18: scaled, clipped, applied, saved and loaded as of the whole model."""
    plain = layers()
    model = sharded(copy.deepcopy(plain))
    blocks = [unigrad.wrap(one) for one in (plain, model)]
    optimizers = [
        unigrad.Optimizer(block, lambda parameters: torch.optim.AdamW(parameters, lr=0.1)) for block in blocks
    ]
    for block, optimizer in zip(blocks, optimizers, strict=True):
        with collector_of(block, "add") as collector:
            collector.backward(block(X).sum())
            collector.scale(2)
            collector.clip_by_global_norm(0.5)
            assert set(collector.gradients_or_zeros()) == set(block.parameters)
            collector.apply(optimizer)
    first, second = (block.state() for block in blocks)
    assert {name: array.tobytes() for name, array in first.items()} == {
        name: array.tobytes() for name, array in second.items()
    }
    blocks[1].load_state({name: 0 * array for name, array in second.items()})
    assert not model[0].weight.full_tensor().any()
    blocks[1].load_state(second)
    assert {name: array.tobytes() for name, array in blocks[1].state().items()} == {
        name: array.tobytes() for name, array in first.items()
    }


@pytest.mark.parametrize("make", [DistributedDataParallel, sharded], ids=["wrapped", "sharded"])
def test_nothing_is_kept_of_a_model_that_was_collected(make):
    """G15."""
    model = make(layers())
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    reference = weakref.ref(model)
    del model, collector
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("make", [DistributedDataParallel, sharded], ids=["wrapped", "sharded"])
@pytest.mark.parametrize(
    "wrapped", [unigrad.checkpoint, lambda layer: unigrad.microbatch(layer, 1)], ids=["checkpoint", "microbatch"]
)
def test_regions_inside(make, wrapped):
    """C1, M1: sums of two parts, in another order than the whole."""
    plain = layers()
    wanted = gradients_of(plain)
    plain[0] = wrapped(plain[0])
    model = make(plain)
    with collector_of(model) as collector:
        collector.backward(model(X).sum())
    for name, value in wanted.items():
        found = collector.gradients[name]
        found = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-7)

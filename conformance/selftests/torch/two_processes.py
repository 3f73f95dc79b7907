"""What two processes of torch do together, scenario by scenario; test_distributed.py starts them and reads what they found.

``python two_processes.py FOLDER RANK`` writes one line of JSON for each scenario to ``FOLDER/RANK``. Each process has half of a
batch, and losses are means, so that the average over processes is the gradient of the whole batch.
"""

import contextlib
import copy
import json
import sys
import traceback
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import unigrad
from unigrad.errors import StaleGraphError, UnreducedError, UnsupportedError

FOLDER, RANK = Path(sys.argv[1]), int(sys.argv[2])
WHOLE = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
HALF = WHOLE.chunk(2)[RANK]
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)).double()


class Branches(nn.Module):
    """Two layers, the second one used if asked, a third one never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(3, 1).double() for _ in range(3))

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


def loss_of(output):
    return output.square().mean()


def collector_of(block, accumulate="write", **options):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **options)


def whole_gradients(model, loss=loss_of):
    """Gradients of the whole batch by torch alone in one process."""
    twin = copy.deepcopy(model)
    loss(twin(WHOLE)).backward()
    return {name: parameter.grad for name, parameter in twin.named_parameters() if parameter.grad is not None}


def full(found):
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).tolist()
        for name, value in found.items()
    }


def refusal(kind, function):
    """Text of the error that a function must raise."""
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")


def slots(model):
    return [parameter.grad is None for parameter in model.parameters()]


def sharded(model):
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def averaged(**options):
    plain = layers()
    model = DistributedDataParallel(copy.deepcopy(plain), **options)
    twin = DistributedDataParallel(copy.deepcopy(plain), **options)
    steps, native = [], []
    for _ in range(2):
        with collector_of(model) as collector:
            collector.backward(loss_of(model(HALF)))
        twin.zero_grad()
        loss_of(twin(HALF)).backward()
        steps.append(full(collector.gradients))
        native.append(full({name: parameter.grad for name, parameter in twin.module.named_parameters()}))
    return {
        "steps": steps,
        "native": native,
        "whole": full(whole_gradients(plain)),
        "engine": collector.engine,
        "slots": slots(model),
    }


@scenario
def average():
    return averaged()


@scenario
def average_in_buckets():
    return averaged(gradient_as_bucket_view=True)


@scenario
def average_of_a_static_graph():
    return averaged(static_graph=True)


@scenario
def average_with_search():
    return averaged(find_unused_parameters=True)


def counted(model):
    """Count the reductions of a wrapper with one bucket."""
    counts = [0]

    def hook(state, bucket):
        counts[0] += 1
        future = distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    return counts


def accumulated(together, **options):
    plain = layers()
    model = DistributedDataParallel(copy.deepcopy(plain), **options)
    parts = HALF.split(1)
    with collector_of(model) as collector:  # the buckets are laid out anew after the first step
        collector.backward(loss_of(model(HALF)))
    counts = counted(model)
    reading = set()
    with collector_of(model, "add") as collector:
        for index, part in enumerate(parts):
            with model.no_sync() if together and index < len(parts) - 1 else contextlib.nullcontext():
                collector.backward(loss_of(model(part)))
            try:
                reading.add(len(collector.gradients))
            except UnreducedError as error:
                reading.add(str(error))
    return {
        "steps": [full(collector.gradients)],
        "whole": full({name: 4 * value for name, value in whole_gradients(plain).items()}),
        "reductions": counts[0],
        "reading": sorted(map(str, reading)),
        "slots": slots(model),
        "reached": collector.usage.reached,
    }


@scenario
def accumulation_reduced_each_time():
    return accumulated(False)


@scenario
def accumulation_reduced_once():
    return accumulated(True)


@scenario
def accumulation_reduced_once_in_buckets():
    return accumulated(True, gradient_as_bucket_view=True)


@scenario
def accumulation_that_is_never_reduced():
    model = DistributedDataParallel(layers())
    with collector_of(model, "add") as collector:
        with model.no_sync():
            collector.backward(loss_of(model(HALF)))
        collector.zero()
        collector.backward(loss_of(model(HALF)))
        after_zero = full(collector.gradients)
        with model.no_sync():
            collector.backward(loss_of(model(HALF)))
    refusals = [
        refusal(UnreducedError, function)
        for function in (lambda: collector.gradients, collector.write_back, collector.gradients_or_zeros)
    ]
    with collector_of(model, "add") as collector:
        with model.no_sync():
            loss = loss_of(model(HALF))
        outside = refusal(UnreducedError, lambda: collector.backward(loss))
    return {
        "steps": [after_zero],
        "whole": full(whole_gradients(model.module)),
        "refusals": [*refusals, outside],
        "slots": slots(model),
    }


@scenario
def second_backward():
    plain = layers()
    model = DistributedDataParallel(copy.deepcopy(plain))
    with collector_of(model, "add") as collector:
        loss = loss_of(model(HALF))
        collector.backward(loss, retain_graph=True)
        before = full(collector.gradients)
        text = refusal(UnreducedError, lambda: collector.backward(loss))
        same = before == full(collector.gradients)
    with collector_of(model) as collector:
        collector.backward(loss_of(model(HALF)))
    return {
        "steps": [before, full(collector.gradients)],
        "whole": full(whole_gradients(plain)),
        "refusals": [text],
        "same": same,
        "slots": slots(model),
    }


@scenario
def unused_on_one():
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    with collector_of(model) as collector:
        collector.backward(loss_of(model(HALF, RANK == 0)))
    return {
        "gradients": full(collector.gradients),
        "reached": collector.usage.reached,
        "unused": collector.usage.unused,
        "slots": slots(model),
    }


@scenario
def unused_on_one_by_torch():
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    loss_of(model(HALF, RANK == 0)).backward()
    return {
        "gradients": full(
            {name: parameter.grad for name, parameter in model.module.named_parameters() if parameter.grad is not None}
        )
    }


@scenario
def unused_without_search():
    model = DistributedDataParallel(Branches())
    with collector_of(model) as collector:
        text = refusal(UnreducedError, lambda: collector.backward(loss_of(model(HALF, True))))
    model.module.third.requires_grad_(False)
    model = DistributedDataParallel(model.module)
    with collector_of(model) as collector:
        collector.backward(loss_of(model(HALF, True)))
    return {"refusals": [text], "gradients": full(collector.gradients), "slots": slots(model)}


@scenario
def a_part_of_the_model():
    plain = layers()
    model = DistributedDataParallel(copy.deepcopy(plain))
    with collector_of(model.module[2]) as collector:
        collector.backward(loss_of(model(HALF)))
    wanted = whole_gradients(plain)
    return {
        "steps": [full(collector.gradients)],
        "whole": full({name: wanted[f"2.{name}"] for name in ("weight", "bias")}),
        "slots": slots(model),
    }


def trained(make, step):
    """States after three steps, of the model made and of the plain one on the whole batch."""
    states = []
    for model, batch in ((make(layers()), HALF), (layers(), WHOLE)):
        block = unigrad.wrap(model)
        optimizer = unigrad.Optimizer(block, lambda parameters: torch.optim.AdamW(parameters, lr=0.01))
        for _ in range(3):
            with collector_of(block, "add") as collector:
                for part in batch.chunk(2):
                    collector.backward(loss_of(block(part)))
                collector.scale(0.5)
                step(collector, optimizer)
        states.append({name: array.tolist() for name, array in block.state().items()})
    return {"steps": states[:1], "whole": states[1]}


def clipped(collector, optimizer):
    collector.clip_by_global_norm(0.1)
    collector.apply(optimizer)


@scenario
def training_averaged():
    return trained(DistributedDataParallel, clipped)


@scenario
def training_sharded():
    return trained(sharded, clipped)


@scenario
def resumed():
    """A run of three steps, and one that was saved after two and went on with what was loaded."""

    def step(block, optimizer):
        with collector_of(block) as collector:
            collector.backward(loss_of(block(HALF)))
            collector.apply(optimizer)

    runs = []
    for _ in range(2):
        block = unigrad.wrap(sharded(layers()))
        runs.append((block, unigrad.Optimizer(block, lambda parameters: torch.optim.AdamW(parameters, lr=0.01))))
    for _ in range(2):
        step(*runs[0])
    unigrad.save_training(FOLDER / f"training{RANK}", *runs[0])
    unigrad.load_training(FOLDER / f"training{RANK}", *runs[1])
    for run in runs:
        step(*run)
    states = [{name: array.tolist() for name, array in block.state().items()} for block, _ in runs]
    moments = [{name: dict(state) for name, state in optimizer.native.state.items()} for _, optimizer in runs]
    kinds = [type(state["exp_avg"]).__name__ for run in moments for state in run.values()]
    return {"first": states[0], "second": states[1], "kinds": sorted(set(kinds))}


@scenario
def regions_inside():
    plain = layers()
    parts = copy.deepcopy(plain)
    parts[0], parts[2] = unigrad.checkpoint(parts[0]), unigrad.microbatch(parts[2], 3)
    steps = []
    for make in (DistributedDataParallel, sharded):
        model = make(parts)
        with collector_of(model) as collector:
            collector.backward(loss_of(model(HALF)))
        steps.append(full(collector.gradients))
    return {"steps": steps, "whole": full(whole_gradients(plain)), "slots": slots(model)}


@scenario
def a_failure_half_way():
    plain = layers()
    steps = []
    for make in (DistributedDataParallel, sharded):
        model = make(copy.deepcopy(plain))

        def fail(parameter):
            raise KeyError

        handle = next(model.parameters()).register_post_accumulate_grad_hook(fail)
        with collector_of(model) as collector:
            refusal(KeyError, lambda: collector.backward(loss_of(model(HALF))))  # noqa: B023  # called at once
            handle.remove()
            empty = not collector.gradients and all(slots(model))
            collector.backward(loss_of(model(HALF)))
        steps.append(full(collector.gradients) if empty else {})
    return {"steps": steps, "whole": full(whole_gradients(plain)), "slots": slots(model)}


@scenario
def shards():
    plain = layers()
    model = sharded(copy.deepcopy(plain))
    with collector_of(model, "add") as collector:
        x = collector.watch(HALF, "x")
        loss = loss_of(model(x))
        collector.backward(loss, retain_graph=True)
        once = full(collector.gradients)
        collector.backward(loss)
    twice = full({name: value / 2 for name, value in collector.gradients.items()})
    twin = WHOLE.clone().requires_grad_()
    loss_of(plain(twin)).backward()
    # of this process's loss, a mean over half as many
    wanted = 4 * twin.grad.chunk(2)[RANK]
    plain.zero_grad()
    return {
        "steps": [once, twice],
        "whole": full(whole_gradients(plain)),
        "inputs": collector.input_gradients["x"].tolist(),
        "inputs_wanted": wanted.tolist(),
        "engine": collector.engine,
        "slots": slots(model),
        "reached": collector.usage.reached,
    }


@scenario
def shards_refuse():
    model = sharded(layers())
    with collector_of(model, "add") as collector:
        loss = loss_of(model(HALF))
        texts = [
            refusal(UnsupportedError, lambda: collector.backward(loss, weight=2)),
            refusal(UnsupportedError, lambda: collector.backward(loss, create_graph=True)),
        ]
        with torch.no_grad():
            model[0].weight.mul_(2)
        texts.append(refusal(StaleGraphError, lambda: collector.backward(loss)))
    return {"refusals": texts, "slots": slots(model)}


@scenario
def state_of_shards():
    plain = layers()
    model = sharded(copy.deepcopy(plain))
    block, whole = unigrad.wrap(model), unigrad.wrap(plain)
    state = block.state()
    same = [array.tobytes() == whole.state()[name].tobytes() for name, array in state.items()]
    block.save(FOLDER / f"sharded{RANK}.safetensors")
    whole.save(FOLDER / f"whole{RANK}.safetensors")
    alike = (FOLDER / f"sharded{RANK}.safetensors").read_bytes() == (FOLDER / f"whole{RANK}.safetensors").read_bytes()
    block.load_state({name: 0 * array for name, array in state.items()})
    with torch.no_grad():
        zeros = float(model(HALF).abs().sum())
    block.load(FOLDER / f"whole{RANK}.safetensors")  # while the root holds whole twins of the zeros
    with torch.no_grad():
        loaded = torch.equal(model(HALF), plain(HALF))
    local = [list(parameter.to_local().shape) for parameter in block.parameters.values()]
    return {"same": same, "alike": alike, "zeros": zeros, "loaded": loaded, "local": local}


@scenario
def parallel_tensors():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(copy.deepcopy(plain), init_device_mesh("cpu", (2,)), plan)
    wanted = whole_gradients(plain)
    with collector_of(model, "add") as collector:
        for _ in range(2):
            collector.backward(loss_of(model(WHOLE)))
    return {
        "steps": [full({name: value / 2 for name, value in collector.gradients.items()})],
        "whole": full(wanted),
        "engine": collector.engine,
        "slots": slots(model),
        "reached": collector.usage.reached,
    }


def main():
    torch.set_num_threads(1)
    store = FOLDER / "group"
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=RANK, world_size=2)
    with (FOLDER / str(RANK)).open("w", buffering=1) as out:
        for name, function in SCENARIOS.items():
            print(name, file=sys.stderr, flush=True)
            try:
                found = function()
            except Exception:
                found = {"failed": traceback.format_exc()}
            print(json.dumps({"scenario": name, **found}), file=out)
            if "failed" in found:  # the other process may wait for what will not come
                raise SystemExit(1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

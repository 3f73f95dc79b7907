"""What two processes of Paddle do together, scenario by scenario; test_distributed.py starts them and reads what they found.

``python two_processes.py FOLDER RANK`` writes one line of JSON for each scenario to ``FOLDER/RANK``. Each process has half of a batch, and
losses are means, so that the average over processes is the gradient of the whole batch.
"""

import copy
import json
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

import paddle  # noqa: E402  # it warns while it is imported
from paddle import nn  # noqa: E402

import unigrad  # noqa: E402
from unigrad import UnsupportedError  # noqa: E402

FOLDER, RANK = Path(sys.argv[1]), int(sys.argv[2])
WHOLE = np.random.default_rng(1).standard_normal((8, 3))
SCENARIOS = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


class Model(nn.Layer):
    """Two layers, and a third that is never called."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())
        self.second, self.third = nn.Linear(5, 1), nn.Linear(3, 1)
        numbers = np.random.default_rng(2)
        for parameter in self.parameters():
            parameter.set_value(numbers.standard_normal(parameter.shape))

    def forward(self, x):
        return self.second(self.first(x))


def half():
    return paddle.to_tensor(np.split(WHOLE, 2)[RANK])


def loss_of(output):
    return output.square().mean()


def collector_of(block, accumulate="write", **options):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore", **options)


def listed(gradients):
    return {name: value.numpy().tolist() for name, value in gradients.items()}


def whole_gradients(model):
    """Gradients of the whole batch by Paddle alone in one process."""
    twin = copy.deepcopy(model)
    loss_of(twin(paddle.to_tensor(WHOLE))).backward()
    return listed({name: one.grad for name, one in twin.named_parameters() if one.grad is not None})


def refusal(kind, function):
    """Text of the error that a function must raise."""
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")


def averaged(change=lambda model: None, **options):
    """Gradients of two steps, each with a forward of its own."""
    model = Model()
    whole = whole_gradients(model)
    change(model)
    wrapped = paddle.DataParallel(model, **options)
    steps = []
    for _ in range(2):
        with collector_of(wrapped) as collector:
            collector.backward(loss_of(wrapped(half())))
        steps.append(listed(collector.gradients))
    slots = [parameter.grad is None for parameter in model.parameters()]
    return {"steps": steps, "whole": whole, "engine": collector.engine, "slots": slots}


@scenario
def average():
    return averaged()


@scenario
def average_with_search():
    return averaged(find_unused_parameters=True)


@scenario
def average_of_a_checkpoint():
    def change(model):
        model.first = unigrad.checkpoint(model.first)

    return averaged(change)


@scenario
def average_of_nested_checkpoints():
    def change(model):
        model.first[0] = unigrad.checkpoint(model.first[0])
        model.first = unigrad.checkpoint(model.first)

    return averaged(change)


@scenario
def average_of_parts():
    def change(model):
        model.first = unigrad.microbatch(model.first, 2)

    return averaged(change)


@scenario
def sum_of_two():
    model = Model()
    whole = whole_gradients(model)
    wrapped = paddle.DataParallel(model)
    with collector_of(wrapped, "add") as collector:
        for _ in range(2):
            collector.backward(loss_of(wrapped(half())))
    return {"steps": [listed(collector.gradients)], "whole": whole}


class One(nn.Layer):
    """One weight of the given shape, all ones."""

    def __init__(self, shape):
        super().__init__()
        self.weight = self.create_parameter(shape, default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x):
        return nn.functional.embedding(x, self.weight) if x.dtype == paddle.int64 else x * self.weight


@scenario
def replicas_of_two_parts():
    """Case 81: the gradients of the parts are 1 and 3 in one process, 2 and 5 in the other."""
    wrapped = paddle.DataParallel(One([1]))
    with collector_of(wrapped, "add") as collector:
        for part in ((1.0, 3.0), (2.0, 5.0))[RANK]:
            collector.backward(wrapped(paddle.to_tensor([part])).sum())
    return listed(collector.gradients)


@scenario
def rows_of_two_processes():
    """Case 88: one process looks up rows 0 and 1, the other rows 0 and 2."""
    wrapped = paddle.DataParallel(One([4, 1]))
    rows = ([0, 1], [0, 2])[RANK]
    with collector_of(wrapped) as collector:
        collector.backward(wrapped(paddle.to_tensor(rows)).sum())
    return listed(collector.gradients)


@scenario
def captured_parameter_of_a_checkpoint():
    """A function that takes hold of a parameter past its layer, twice: nothing can stand in for it."""
    model = Model()
    wrapped = paddle.DataParallel(model)
    weight, bias = model.second.weight, model.second.bias

    def head(hidden):
        return hidden @ weight + bias

    model.second.forward = unigrad.checkpoint(head, blocks=[])
    with collector_of(wrapped) as collector:
        text = refusal(UnsupportedError, lambda: wrapped(half()))
        return {"text": text, "nothing": not collector.gradients}


@scenario
def retained():
    wrapped = paddle.DataParallel(Model())
    with collector_of(wrapped) as collector:
        loss = loss_of(wrapped(half()))
        text = refusal(UnsupportedError, lambda: collector.backward(loss, retain_graph=True))
        nothing = not collector.gradients
        collector.backward(loss)
    return {"text": text, "nothing": nothing, "gradients": listed(collector.gradients)}


@scenario
def without_exchange():
    wrapped = paddle.DataParallel(Model())
    with collector_of(wrapped) as collector, wrapped.no_sync():
        loss = loss_of(wrapped(half()))
        return {"text": refusal(UnsupportedError, lambda: collector.backward(loss))}


@scenario
def step_by_the_native_optimizer():
    model = Model()
    wrapped = paddle.DataParallel(model)
    optimizer = paddle.optimizer.SGD(0.125, parameters=model.parameters())
    for _ in range(2):
        with collector_of(wrapped) as collector:
            collector.backward(loss_of(wrapped(half())))
        collector.write_back()
        optimizer.step()
    return {"values": listed(dict(model.named_parameters()))}


@scenario
def step_by_unigrad():
    model = Model()
    wrapped = paddle.DataParallel(model)
    optimizer = unigrad.Optimizer(wrapped, lambda parameters: paddle.optimizer.SGD(0.125, parameters))
    for _ in range(2):
        with collector_of(wrapped) as collector:
            collector.backward(loss_of(wrapped(half())))
            collector.apply(optimizer)
    return {"values": listed(dict(model.named_parameters())), "served": list(optimizer.served)}


def main():
    """Run all scenarios in one order, so that the processes meet."""
    paddle.set_default_dtype("float64")
    paddle.distributed.init_parallel_env()
    with (FOLDER / str(RANK)).open("w") as out:
        for name, function in SCENARIOS.items():
            try:
                entry = function()
            except Exception:
                entry = {"failed": traceback.format_exc()}
            print(json.dumps({"scenario": name, **entry}), file=out, flush=True)


if __name__ == "__main__":
    main()

"""Equal calls of a kernel give equal bits, so that a recompute is its forward (clauses C1, C8)."""

import os
import subprocess
import sys

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import unigrad

FIRST_CALLS = 36
"""MindSpore tries at most six divisions of a tensor among threads, each in five calls."""

OPERATIONS = {
    "log": ops.log,
    "pow": lambda x: x**2.5,
    "softplus": ops.softplus,
    "mish": ops.mish,
    "binary_cross_entropy": lambda x: ops.binary_cross_entropy_with_logits(x, x, x * 0 + 1, x * 0 + 1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_first_calls_of_a_kernel_give_the_same_bits(name):
    operation = OPERATIONS[name]
    x = Tensor(np.random.default_rng(1).random((3, 7)).astype("float32") * 0.8 + 0.1)
    gradient = mindspore.grad(lambda x: (operation(x) * operation(x)).sum())
    calls = [(operation(x).asnumpy().tobytes(), gradient(x).asnumpy().tobytes()) for _ in range(FIRST_CALLS)]
    assert len(set(calls)) == 1


def test_regions_of_shapes_seen_for_the_first_time_are_their_recompute():
    layer = nn.Dense(13, 13)
    run = unigrad.checkpoint(lambda x: ops.log(layer(x) ** 2 + 1.0), blocks=[layer])
    for number in range(3 * FIRST_CALLS):
        x = Tensor(np.random.default_rng(number).normal(size=(5 + number % 3, 13)).astype("float32"))
        with unigrad.GradientCollector(layer) as collector:
            collector.backward((run(x) ** 2).sum())


SET_BEFORE = """
import mindspore
mindspore.device_context.cpu.op_tuning.threads_num(2)
import numpy as np
import unigrad
from mindspore import Tensor, nn
layer, calls = nn.Dense(2, 2), []
def function(x):
    calls.append(x)
    return layer(x) * float(len(calls))
run = unigrad.checkpoint(function, blocks=[layer])
try:
    with unigrad.GradientCollector(layer) as collector:
        collector.backward(run(Tensor(np.ones((2, 2), "float32"))).sum())
except unigrad.RecomputeMismatchError as error:
    print("told" if "threads_num" in str(error) else f"not told: {error}")
"""


def test_a_number_of_threads_that_was_set_before_stays_and_is_told_in_the_error():
    environment = os.environ | {"GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, "-c", SET_BEFORE], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.stdout.strip() == "told", done.stderr

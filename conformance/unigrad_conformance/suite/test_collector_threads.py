"""Clause G16: a collector belongs to the thread that opened it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import unigrad
from unigrad.errors import UnsupportedError, WrongThreadError
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.collecting import collects, f32, leaves, state_of
from unigrad_conformance.suite.problems import array, dense, gradients_of, mlp, same_bits

pytestmark = pytest.mark.clause("G16")


def collector_of(block, accumulate="add"):
    return unigrad.GradientCollector(block, accumulate, on_unused="ignore")


def in_thread(function, *args):
    """Run a function in a thread of its own; return its result or raise its exception."""
    outcome = {}

    def run():
        try:
            outcome["value"] = function(*args)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "the thread hangs"
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]


@pytest.mark.parametrize("action", ["backward", "watch", "zero", "scale", "clip_by_global_norm", "leave"])
def test_another_thread_is_refused_and_changes_nothing(samples, action):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
        loss = samples.operations.sum(own["a"] * own["a"])
        before = state_of(collector)
        call = {
            "backward": lambda: collector.backward(loss),
            "watch": lambda: collector.watch(samples.tensor(f32([1, 2])), "x"),
            "zero": collector.zero,
            "scale": lambda: collector.scale(2.0),
            "clip_by_global_norm": lambda: collector.clip_by_global_norm(1.0),
            "leave": lambda: collector.__exit__(None, None, None),
        }[action]
        with pytest.raises(WrongThreadError, match="thread"):
            in_thread(call)
        assert state_of(collector) == before
        collector.backward(loss)
    collects(collector.gradients, a=[3, 5])


def test_results_may_be_read_in_another_thread(samples):
    own = leaves(samples, a=[1, 2])
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    in_thread(lambda: collects(collector.gradients, a=[1, 1]))


def test_threads_one_after_the_other(samples):
    own = leaves(samples, a=[1, 2])

    def work(factor):
        with collector_of(own) as collector:
            collector.backward(samples.operations.sum(own["a"] * float(factor)))
        return collector

    for factor in (2, 3):
        collects(in_thread(work, factor).gradients, a=[factor, factor])
    collects(work(5).gradients, a=[5, 5])


def test_a_thread_that_ends_in_an_exception_leaves_others_free(samples):
    own = leaves(samples, a=[1, 2])

    def work():
        with collector_of(own):
            raise LookupError("in the thread")

    with pytest.raises(LookupError, match="in the thread"):
        in_thread(work)
    with collector_of(own) as collector:
        collector.backward(samples.operations.sum(own["a"]))
    collects(collector.gradients, a=[1, 1])


def train(samples, model, seed, rounds=8, start=None):
    """Return the gradients of a few rounds on data of one's own."""
    with collector_of(model) as collector:
        if start is not None:
            start.wait(60)
        for index in range(rounds):
            x = samples.tensor(array(6, 3, seed=100 * seed + index))
            y = model(x)
            collector.backward(samples.operations.sum(y * y))
    return gradients_of(collector)


@pytest.mark.parametrize("shared", [True, False], ids=["one-model", "a-model-each"])
def test_several_threads_give_the_serial_result_or_are_refused(samples, guarantee, shared):
    declared = guarantee(Guarantee.THREADS)
    models = [mlp(samples, 3, 8, 2)] * 4 if shared else [mlp(samples, 3, 8, 2, seed=seed) for seed in range(4)]
    if declared != "kept":
        with collector_of(models[0]) as collector:
            with pytest.raises(getattr(unigrad, declared), match="thread"):
                in_thread(train, samples, models[1], 1)
            collector.backward(samples.operations.sum(models[0](samples.tensor(array(2, 3)))))
        assert declared == UnsupportedError.__name__
        return
    serial = [train(samples, model, seed) for seed, model in enumerate(models)]
    start = threading.Barrier(len(models))
    found: dict[int, Any] = {}

    def work(seed):
        try:
            found[seed] = train(samples, models[seed], seed, start=start)
        except BaseException as error:
            found[seed] = error

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    for seed, wanted in enumerate(serial):
        if isinstance(found[seed], BaseException):
            raise found[seed]
        same_bits(found[seed], wanted)


def normalized(samples):
    """Return a block whose forward writes buffers."""
    norm = samples.layer("batch_norm", channels=8, momentum=0.1, epsilon=1e-5, affine=True)
    return unigrad.wrap(samples.layer("sequential", layers=[dense(samples, 3, 8), norm, dense(samples, 8, 2)])).train()


@pytest.mark.clause("G16", "B9", "C3", "M3")
@pytest.mark.parametrize("way", ["plain", "frozen", "checkpoint", "microbatch"])
def test_threads_at_one_model_share_its_buffers_and_modes(samples, guarantee, way):
    # Every step has the same batch, so the statistics depend on the number of steps alone, not on their order.
    declared = guarantee(Guarantee.THREADS)
    threads, rounds = 4, 15
    x = samples.tensor(array(6, 3))
    blocks = [normalized(samples), normalized(samples)]
    found: list[Any] = []

    def work(block, count):
        run = block
        if way == "frozen":
            block.freeze("1")
        elif way == "checkpoint":
            run = unigrad.checkpoint(block)
        elif way == "microbatch":
            run = unigrad.microbatch(block, 6, allow_coupled=True)
        for _ in range(count):
            with collector_of(block) as collector:
                y = run(x)
                collector.backward(samples.operations.sum(y * y))
        found.append(gradients_of(collector))

    if declared != "kept":
        before = blocks[1].state()
        with collector_of(blocks[0]), pytest.raises(getattr(unigrad, declared), match="thread"):
            in_thread(work, blocks[1], 1)
        same_bits(blocks[1].state(), before)
        return
    work(blocks[0], threads * rounds)
    begun = [threading.Thread(target=work, args=(blocks[1], rounds)) for _ in range(threads)]
    for thread in begun:
        thread.start()
    for thread in begun:
        thread.join(120)
        assert not thread.is_alive(), "a thread hangs"
    assert len(found) == threads + 1
    for gradients in found[1:]:
        same_bits(gradients, found[0])
    same_bits(blocks[1].state(), blocks[0].state())
    modes = [[mode for _, mode in block.backend.block.modes(block.inner)] for block in blocks]
    assert modes[0] == modes[1]

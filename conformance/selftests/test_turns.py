"""Turns of threads at a model: who waits for whom, and what becomes of who waits too long (clause G16)."""

import threading

import pytest

from unigrad import turns
from unigrad.errors import UnsupportedError
from unigrad.turns import Turn

ONE, OTHER = frozenset({1, 2}), frozenset({3})


def entered(turn):
    """Whether another thread enters a turn without waiting."""
    done = []

    def work():
        try:
            with turn():
                done.append(True)
        except UnsupportedError:
            done.append(False)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    return done[0]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(turns, "WAIT_S", 0.05)


@pytest.mark.parametrize(
    ("mine", "theirs", "layers", "free"),
    [
        (False, False, ONE, True),
        (True, False, ONE, False),
        (False, True, ONE, False),
        (True, True, ONE, False),
        (True, True, OTHER, True),
        (True, True, frozenset(), True),
    ],
)
def test_two_threads(mine, theirs, layers, free):
    with Turn(ONE, mine):
        assert entered(lambda: Turn(layers, theirs)) is free
    assert entered(lambda: Turn(layers, theirs))


def test_a_thread_never_waits_for_itself():
    with Turn(ONE, True), Turn(ONE, True), Turn(ONE, False):
        assert not entered(lambda: Turn(ONE, False))


def test_a_recompute_in_another_thread_is_of_the_thread_of_its_forward():
    me = turns.thread()

    def nested():
        with Turn(ONE, True, me):
            return Turn(ONE, True)  # what is called inside the recompute is of the same thread

    with Turn(ONE, True):
        assert entered(nested)


def test_layers_that_are_met_late_are_waited_for():
    with Turn(ONE, True):

        def late():
            turn = Turn(OTHER, False)

            class Late:
                def __enter__(self):
                    with turn:
                        turn.extend(ONE)

                def __exit__(self, *details):
                    pass

            return Late()

        assert not entered(late)
        assert entered(lambda: Turn(OTHER, True))


def test_who_waits_goes_on_when_the_turn_ends(monkeypatch):
    monkeypatch.setattr(turns, "WAIT_S", 30)
    order = []
    inside, waiting = threading.Event(), threading.Event()

    def work():
        waiting.set()
        with Turn(ONE, False):
            order.append("second")

    with Turn(ONE, True):
        thread = threading.Thread(target=work)
        thread.start()
        assert waiting.wait(30)
        inside.wait(0.1)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]

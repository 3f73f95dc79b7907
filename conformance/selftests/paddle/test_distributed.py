"""Two processes of Paddle over loopback: gradients are those of the whole batch in one process, or refused (clauses G13, G2, C1, M1)."""

import socket
from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("two_processes.py")
EPS = float(np.finfo(np.float64).eps)
TERMS = 200
"""Roundings: sums over 8 samples and 5 values, through three layers, and their average."""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def both(pair):
    """Return a function that gives what the two processes found in one scenario."""
    master, *ports = free_ports(3)
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    shared = {
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_MASTER": f"127.0.0.1:{master}",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    pair.run(
        PROGRAM,
        [
            {**shared, "PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoint}
            for rank, endpoint in enumerate(endpoints)
        ],
    )
    return pair.both


def near(found, wanted, times=1):
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        value = times * np.array(value)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TERMS * EPS * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize(
    "scenario",
    [
        "average",
        "average_with_search",
        "average_of_a_checkpoint",
        "average_of_nested_checkpoints",
        "average_of_parts",
    ],
)
def test_gradients_are_those_of_the_whole_batch(both, scenario):
    """The third layer, never called, is absent; nothing is left in ``.grad``; both processes have the same bits."""
    first, second = both(scenario)
    assert first["engine"] == second["engine"] == "native"
    assert first["steps"] == second["steps"]
    assert all(first["slots"]) and all(second["slots"])  # noqa: PT018  # one statement of two processes
    assert not any(name.startswith("third") for name in first["whole"])
    for step in first["steps"]:
        near(step, first["whole"])


def test_a_sum_of_two_backward_calls_is_twice_the_whole(both):
    for one in both("sum_of_two"):
        near(one["steps"][0], one["whole"], times=2)


def test_case_81_replicas_are_averaged_once_with_all_their_parts(both):
    assert both("replicas_of_two_parts") == [{"weight": [5.5]}, {"weight": [5.5]}]


def test_case_88_rows_of_two_processes_are_merged_in_the_mean(both):
    assert both("rows_of_two_processes") == [{"weight": [[1], [0.5], [0.5], [0]]}] * 2


def test_a_parameter_that_a_checkpoint_has_captured_is_refused(both):
    """Nothing can stand in for it, and its exchange would begin with a part of its gradient."""
    for one in both("captured_parameter_of_a_checkpoint"):
        assert "past its layer" in one["text"]
        assert one["nothing"]


def test_a_retained_graph_is_refused_and_nothing_is_collected(both):
    first, second = both("retained")
    assert "first backward of a forward only" in first["text"]
    assert first["nothing"]
    assert second["nothing"]
    assert first["gradients"] == second["gradients"] != {}


def test_no_sync_is_refused(both):
    assert all("mean over processes" in one["text"] for one in both("without_exchange"))


def test_both_processes_step_alike(both):
    """G18: with Paddle's optimizer after write_back, and with unigrad's."""
    native = both("step_by_the_native_optimizer")
    own = both("step_by_unigrad")
    assert native[0]["values"] == native[1]["values"] == own[0]["values"] == own[1]["values"]
    assert not any(name.startswith("third") for name in own[0]["served"])

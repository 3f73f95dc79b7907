"""Two processes of torch over loopback: gradients are those of the whole batch in one process, or refused (clauses G13, G1 to G6, B5)."""

from pathlib import Path

import numpy as np
import pytest

PROGRAM = Path(__file__).with_name("two_processes.py")
EPS = float(np.finfo(np.float64).eps)
FACTOR = 200
"""Roundings: sums over 8 samples and 5 values, through three layers, and their average; three AdamW steps divide by the root of squares."""


@pytest.fixture(scope="module")
def both(pair):
    """Return a function that gives what the two processes found in one scenario."""
    pair.run(PROGRAM, [{}, {}])
    return pair.both


def close(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(found[name], value, rtol=0, atol=FACTOR * EPS * scale, err_msg=name)


ALL = [
    "average",
    "average_in_buckets",
    "average_of_a_static_graph",
    "average_with_search",
    "accumulation_reduced_each_time",
    "accumulation_reduced_once",
    "accumulation_reduced_once_in_buckets",
    "accumulation_that_is_never_reduced",
    "second_backward",
    "a_part_of_the_model",
    "regions_inside",
    "a_failure_half_way",
    "shards",
    "parallel_tensors",
]


@pytest.mark.parametrize("scenario", ALL)
def test_gradients_are_those_of_the_whole_batch(both, scenario):
    """G13, G1: in both processes, and no slot is left written."""
    first, second = both(scenario)
    assert first["steps"] == second["steps"]
    for result in (first, second):
        assert result["steps"]
        for step in result["steps"]:
            close(step, result["whole"])
        assert all(result["slots"])


@pytest.mark.parametrize("scenario", [name for name in ALL if name.startswith("average")])
def test_gradients_are_those_of_torchs_own_loop(both, scenario):
    """G13: bit for bit."""
    for result in both(scenario):
        assert result["engine"] == "native"
        assert result["steps"] == result["native"]


def test_control_halves_differ_from_the_whole(both):
    """An unreduced gradient would be found: the gradients of one process's loss are not those of the whole batch."""
    first, second = both("shards")
    assert first["inputs"] != second["inputs"]


def test_accumulation_reduces_once(both):
    """G13: counted by a communication hook; what is not reduced cannot be read."""
    for scenario, count in (
        ("accumulation_reduced_each_time", 4),
        ("accumulation_reduced_once", 1),
        ("accumulation_reduced_once_in_buckets", 1),
    ):
        for result in both(scenario):
            assert result["reductions"] == count
            assert len(result["reached"]) == 6
            early = [text for text in result["reading"] if text != "6"]
            assert (count == 4 and not early) or (count == 1 and len(early) == 1 and "no_sync" in early[0])


def test_what_was_never_reduced_is_not_handed_out(both):
    """G13, G5: not by reading, nor to the slots; zero() forgets it; a forward under no_sync() has its backward under it."""
    for result in both("accumulation_that_is_never_reduced"):
        *reading, outside = result["refusals"]
        assert len(reading) == 3
        assert all("no_sync() have not been averaged" in text for text in reading)
        assert "not for a forward under no_sync()" in outside


def test_a_second_backward_is_refused(both):
    """G13, G3: and changes nothing; the next forward is served."""
    for result in both("second_backward"):
        assert "has done so for this one in an earlier backward" in result["refusals"][0]
        assert result["same"]


def test_a_parameter_unused_in_one_process_and_in_both(both):
    """G6, G13: what one process uses is averaged in both; what none uses is absent. As torch itself has it."""
    results, native = both("unused_on_one"), both("unused_on_one_by_torch")
    for result, other in zip(results, native, strict=True):
        assert sorted(result["gradients"]) == ["first.bias", "first.weight", "second.bias", "second.weight"]
        assert result["gradients"] == other["gradients"]
        assert result["reached"] == list(result["gradients"])
        assert result["unused"] == ["third.weight", "third.bias"]
        assert all(result["slots"])
    assert results[0]["gradients"] == results[1]["gradients"]


def test_a_parameter_that_stops_the_reduction(both):
    """G13: told by name before anything runs; the model is served when the parameter is frozen."""
    for result in both("unused_without_search"):
        assert "third.weight, third.bias" in result["refusals"][0]
        assert len(result["gradients"]) == 4
        assert all(result["slots"])


@pytest.mark.parametrize("scenario", ["training_averaged", "training_sharded"])
def test_training_is_that_of_the_whole_batch(both, scenario):
    """G18, R4: accumulated, scaled, clipped and applied; clipping is by the norm over both processes."""
    first, second = both(scenario)
    assert first["steps"] == second["steps"]
    for result in (first, second):
        close(result["steps"][0], result["whole"])


def test_a_run_of_shards_goes_on_where_it_was_saved(both):
    """D2: the same bits, with the moments of each process's part."""
    for result in both("resumed"):
        assert result["first"] == result["second"]
        assert result["kinds"] == ["DTensor"]


def test_shards_have_gradients_of_their_own(both):
    """G9, R2: input gradients are those of the process's own loss, as under torch."""
    for result in both("shards"):
        close({"x": result["inputs"]}, {"x": result["inputs_wanted"]})
        assert result["engine"] == "native"
        assert len(result["reached"]) == 6


def test_what_shards_refuse(both):
    """G11, G17, G14."""
    for result in both("shards_refuse"):
        weight, graph, stale = result["refusals"]
        assert "weight=" in weight
        assert "create_graph" in graph
        assert "changed in place after the forward" in stale
        assert all(result["slots"])


def test_the_state_of_shards_is_that_of_the_whole_model(both):
    """B5: collected, saved and loaded, bit for bit; a forward after loading sees what was loaded."""
    first, second = both("state_of_shards")
    for result in (first, second):
        assert len(result["same"]) == 6
        assert all(result["same"])
        assert result["alike"]
        assert result["zeros"] == 0
        assert result["loaded"]
    # five rows over two processes: three and two
    assert first["local"][0] == [3, 3]
    assert second["local"][0] == [2, 3]


def test_parallel_tensors_are_served_natively(both):
    for result in both("parallel_tensors"):
        assert result["engine"] == "native"
        assert result["reached"] == ["0.weight", "0.bias", "2.weight", "2.bias"]

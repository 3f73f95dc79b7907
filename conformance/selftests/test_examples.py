"""The example programs run on every built-in backend, reach what they promise, and agree with each other."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
BACKENDS = ("numpy", "torch")
OTHERS = ("mindspore", "paddle", "tensorflow")
"""Backends whose training takes a minute or more, so that three epochs are compared."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run(program, backend, *arguments):
    """Run an example in a process of its own and return it; its folder is the script's, as a user has it."""
    command = [sys.executable, str(EXAMPLES / program), "--backend", backend, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | ONE_THREAD)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("three_backwards.py", "write, backward 4: the graph of this loss was released"),
        ("sequential_microbatch.py", "all gradients agree"),
        ("frozen_residual.py", "all gradients agree, the statistics did not move"),
        ("image_attack.py", "after "),
        ("resume_training.py", "the same bits as without a stop"),
    ],
)
def test_program_runs(program, last, backend):
    done = run(program, backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--dropout", "2"],
        ["--dropout", "nan"],
        ["--rate", "-1"],
        ["--rate", "nan"],
        ["--seed", "-1"],
        ["--seed", "99999999999"],
        ["--epochs", "0"],
        ["--microbatch", "1.5"],
        ["--json", "absent/x.json"],
    ],
    ids=" ".join,
)
def test_a_wrong_option_is_told_without_a_traceback(wrong, tmp_path):
    done = run("train_digits.py", "numpy", "--json", str(tmp_path / "x.json"), *wrong)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("train_digits.py: error: ")
    assert wrong[0] in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "first"),
    [
        ("native_grad_scaler.py", "skipped 7 steps that overflowed"),
        ("native_clip.py", "clipped "),
        ("native_schedule.py", "groups 1, parameters 6"),
        ("native_autocast.py", "gradients are torch.float32"),
    ],
)
def test_native_program_of_torch_runs_and_learns(program, first):
    """They are compared with plain loops in torch/test_native_programs.py."""
    command = [sys.executable, str(EXAMPLES / program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | ONE_THREAD)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(first)
    assert all(float(number) > 0.85 for number in re.findall(r"accuracy.*? ([0-9.]+)", done.stdout))
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def test_digits_reach_98_percent_and_name_the_unused_branch(backend, tmp_path):
    done = run("train_digits.py", backend, "--checkpoint", "--microbatch", "16", "--json", str(tmp_path / "out.json"))
    assert done.returncode == 0, done.stderr
    history = json.loads((tmp_path / "out.json").read_text())["epochs"]
    assert history[-1]["accuracy"] >= 0.98
    assert "auxiliary.weight, auxiliary.bias" in done.stdout
    # One warning for the whole training, however many collectors were opened.
    assert done.stderr.count("UnusedParameterWarning") + done.stdout.count("UnusedParameterWarning") == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_digits_as_a_whole_cannot_be_split(backend):
    done = run("train_digits.py", backend, "--microbatch-all", "16")
    assert done.returncode == 1
    assert "features.1 computes statistics over the batch" in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("dtype", "bound"),
    # One step differs by rounding; the steps of five epochs let that grow. The bounds are those of the task the program was made for.
    [("float32", 1e-4), ("float64", 1e-10)],
)
def test_loss_curves_agree(dtype, bound, tmp_path):
    curves = {}
    for backend in BACKENDS:
        for option in ((), ("--checkpoint",)):
            target = tmp_path / f"{backend}{len(option)}.json"
            arguments = ("--dropout", "0", "--epochs", "5", "--dtype", dtype, "--json", str(target), *option)
            done = run("train_digits.py", backend, *arguments)
            assert done.returncode == 0, done.stderr
            curves[backend, option] = [epoch["loss"] for epoch in json.loads(target.read_text())["epochs"]]
    for backend in BACKENDS:
        assert curves[backend, ()] == curves[backend, ("--checkpoint",)], "checkpoint must not change a bit"
    for left, right in zip(curves["numpy", ()], curves["torch", ()], strict=True):
        assert abs(left - right) <= bound * abs(left)


def losses(backend, folder):
    target = folder / f"{backend}.json"
    done = run("train_digits.py", backend, "--dropout", "0", "--epochs", "3", "--json", str(target))
    assert done.returncode == 0, done.stderr
    assert "auxiliary.weight, auxiliary.bias" in done.stdout
    return [epoch["loss"] for epoch in json.loads(target.read_text())["epochs"]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return losses("numpy", tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("backend", OTHERS)
def test_the_loss_curve_of_every_backend_is_that_of_the_reference(backend, reference, tmp_path):
    for left, right in zip(reference, losses(backend, tmp_path), strict=True):
        assert abs(left - right) <= 1e-4 * abs(left)  # as above


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backend", "no-such-backend"),
        ("--backend", "numpy", "--microbatch", "0"),
        ("--backend", "numpy", "--epochs", "0"),
        ("--backend", "numpy", "--json", str(EXAMPLES / "no-such-folder" / "out.json")),
    ],
    ids=["unknown-backend", "size-0", "no-epoch", "unwritable"],
)
def test_mistakes_are_told_without_a_traceback(arguments):
    command = [sys.executable, str(EXAMPLES / "train_digits.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert "error:" in done.stderr + done.stdout


@pytest.mark.parametrize(
    "program",
    ["three_backwards.py", "sequential_microbatch.py", "frozen_residual.py", "image_attack.py", "resume_training.py"],
)
def test_an_unknown_backend_is_told_without_a_traceback(program):
    done = run(program, "no-such-backend")
    assert done.returncode == 2
    assert "error: argument --backend" in done.stderr
    assert "Traceback" not in done.stderr

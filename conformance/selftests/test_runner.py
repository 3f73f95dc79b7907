"""The runner: a process per backend that nothing in the caller's folder changes, and whose death is a result."""

import json
import os
import subprocess
import sys

import pytest
from unigrad_conformance.results import ResultsError, load
from unigrad_conformance.runner import _environment

TWO = "def test_a(): pass\ndef test_b(): pass\n"


def test_progress_counts_as_failed_what_fails_the_check(fake):
    fake.backend()
    fake.suite(
        "def test_a(): raise NoSampleError('mandatory')\n"
        "def test_b(guarantee): raise NoSampleError('optional')\n"
        "@pytest.mark.needs(Capability.SECOND_ORDER)\ndef test_c(): raise NoSampleError('optional')\n"
        "def test_d(): assert False\n"
    )
    process = fake.check("fake")
    assert "fake: done, 4/4 tests, 2 failed" in process.stderr
    assert process.returncode == 1


def test_a_process_that_dies_after_its_tests_is_not_green(fake):
    fake.backend()
    fake.suite("import atexit\natexit.register(os.abort)\ndef test_a(): pass")
    process = fake.check("fake")
    assert process.returncode == 1
    assert "process died (signal 6, SIGABRT)" in process.stdout


def test_the_folder_of_the_caller_changes_nothing(fake):
    fake.backend()
    fake.suite(TWO + "def test_cwd(): assert not os.path.exists('conftest.py')\n")
    hostile = "raise SystemExit('hostile')"
    for name in ("conftest.py", "fakeframework/__init__.py", "torch/__init__.py", "numpy/__init__.py", "pytest.py"):
        fake.write(f"cwd/{name}", hostile)
    fake.write("cwd/pytest.ini", "[pytest]\naddopts = --nonsense\n")
    control = subprocess.run([sys.executable, "-c", "import torch"], cwd=fake.cwd, capture_output=True, text=True)
    assert control.stderr == "hostile\n"
    settings = {"PYTEST_ADDOPTS": "--nonsense", "PYTEST_PLUGINS": "nonsense"}
    process = fake.check("fake", **settings)
    assert process.returncode == 0, process.stdout + process.stderr


def test_no_entry_of_the_path_means_the_folder_of_the_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    environment = _environment({"PYTHONPATH": os.pathsep.join(["", "below", "/above", ""]), "PATH": "/bin"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "below"), "/above"]
    assert environment["PYTHONSAFEPATH"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PATH"] == "/bin"


def test_another_interpreter_is_used_and_named_in_the_command(fake):
    fake.backend()
    fake.suite("def test_a(): assert os.environ['MARKED'] == 'yes'\ndef test_b(): assert False")
    python = fake.write("cwd/python", f'#!/bin/sh\nMARKED=yes exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    process = fake.check("fake=./python")
    assert fake.outcomes()["test_a"]["outcome"] == "passed"
    assert f"unigrad check fake={python} -k test_fake.py::test_b" in process.stdout


@pytest.mark.parametrize(
    ("python", "code", "message"),
    [
        pytest.param("./absent", 2, "there is no interpreter", id="absent"),
        pytest.param("/bin/true", 1, "process died (exit code 0)", id="not-python"),
    ],
)
def test_an_interpreter_that_cannot_run_the_suite(fake, python, code, message):
    fake.backend()
    fake.suite(TWO)
    process = fake.check(f"fake={python}")
    assert process.returncode == code
    assert message in process.stdout + process.stderr
    assert "Traceback" not in process.stdout + process.stderr


def test_a3_a_broken_backend_is_a_row_and_one_not_installed_is_told(fake):
    fake.backend()
    fake.backend("broken", framework="brokenframework")
    fake.backend("absent", framework="absentframework")
    fake.backend("faulty")
    fake.write("site/faulty_backend/__init__.py", "1 / 0")
    fake.framework("brokenframework", "raise ImportError('libx.so: cannot open')")
    fake.suite(TWO)
    process = fake.check()
    assert process.returncode == 1
    assert fake.outcomes()["test_b"]["outcome"] == "passed"
    status = {session.backend: session.status for session in load(fake.results)}
    assert status == {"fake": "complete", "broken": "unavailable", "faulty": "unavailable"}
    assert "'brokenframework', which is installed but does not import" in process.stdout
    assert "ZeroDivisionError" in process.stdout
    assert "not checked: backend 'absent' needs 'absentframework', which is not installed" in process.stdout


def test_x1_backends_that_disagree_fail(fake):
    fake.backend()
    fake.backend("other", framework="otherframework")
    fake.framework("otherframework")
    fake.suite(
        "def test_a(backend, record):\n"
        "    off = 1.0 if backend.spec.name == 'other' else 0.0\n"
        "    record('near', 1.0 + off * 2.0**-52, terms=1, reason='one rounding')\n"
        "    record('far', [1.0, 2.0][int(off)], terms=1, reason='one rounding')\n"
        "    record('tie', off, terms=1, reason='one rounding', choice=True)\n"
        "    record('set', {'a', 'b'} if off else {'a'})\n"
    )
    process = fake.check("fake", "other", "-j", "2")
    assert process.returncode == 1
    lines = process.stdout.splitlines()
    assert "DIFFERS: other against fake, test_fake.py::test_a, far: value" in lines
    assert "DIFFERS: other against fake, test_fake.py::test_a, set: exact value" in lines
    assert "choice (X2): other against fake, test_fake.py::test_a, tie: value" in lines
    assert not [line for line in lines if "near" in line]
    assert "    bound because: one rounding" in lines
    row = next(line.split() for line in lines if line.startswith("X1"))
    assert row[-3:] == ["not", "yet", "failed"]


@pytest.fixture
def kept(fake):
    fake.backend()
    fake.suite("def test_a(record): record('x', np.ones(3), terms=1, reason='r')")
    assert fake.check("fake").returncode == 0
    return fake


def test_a_check_leaves_whole_files_only(kept):
    assert sorted(file.name for file in kept.results.iterdir()) == ["fake.json", "fake.npz"]


def _other_version(folder):
    data = json.loads((folder / "fake.json").read_text())
    (folder / "fake.json").write_text(json.dumps({**data, "format": 99}))


DAMAGE = {
    "missing": (lambda folder: [file.unlink() for file in folder.iterdir()] and folder.rmdir(), "no folder"),
    "empty": (lambda folder: [file.unlink() for file in folder.iterdir()], "holds no results"),
    "running": (lambda folder: (folder / "other.unfinished").write_text(""), "half written"),
    "cut": (lambda folder: (folder / "fake.json").write_text('{"format": 1, "res'), "cannot be read"),
    "no arrays": (lambda folder: (folder / "fake.npz").unlink(), "cannot be read"),
    "other arrays": (lambda folder: (folder / "fake.npz").write_bytes(b"x"), "is not the file that was written"),
    "other version": (_other_version, "has format 99; this unigrad reads format 3"),
    "other file": (lambda folder: (folder / "fake.json").write_text("[]"), "is not a file of results"),
    "holes": (lambda folder: (folder / "fake.json").write_text('{"format": 3}'), "is not the file that was written"),
}


def test_results_that_cannot_be_read_are_clear_errors(kept):
    backup = {file.name: file.read_bytes() for file in kept.results.iterdir()}
    for name, (damage, message) in DAMAGE.items():
        kept.results.mkdir(exist_ok=True)
        for file, content in backup.items():
            (kept.results / file).write_bytes(content)
        damage(kept.results)
        with pytest.raises(ResultsError) as caught:
            load(kept.results)
        assert message in str(caught.value), name
        (kept.results / "other.unfinished").unlink(missing_ok=True)

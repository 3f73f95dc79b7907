"""A check that is interrupted, finds no room for its files or cannot write them: what was done is kept and told."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from unigrad_conformance import outputs
from unigrad_conformance.outputs import Output, OutputError
from unigrad_conformance.results import ResultsError, load

HANG = (
    "def test_a(record): record('x', np.ones(3), terms=1, reason='r')\n"
    "def test_b():\n"
    "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], start_new_session=True)\n"
    "    open({pids!r}, 'a').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
    "    time.sleep(300)\n"
    "def test_c(): pass\n"
)


def hanging(fake, *names):
    """A check whose backends all hang in their second test, and the pids of the processes in it."""
    for name in names:
        fake.backend(name)
    pids = fake.root / "pids"
    fake.suite(HANG.format(pids=str(pids)))
    files = ("--json", "all.json", "--junit", "all.xml")
    process = fake.start("check", *names, "-j", "2", *files, "--results", str(fake.results))
    deadline = time.monotonic() + 60
    while len(pids.read_text().splitlines() if pids.exists() else ()) < min(len(names), 2):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process, [int(pid) for pid in pids.read_text().split()]


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_interrupted_check_ends_its_processes_and_reports_what_it_did(fake, which):
    process, pids = hanging(fake, "fake", "other", "third")
    process.send_signal(which)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors + output
    assert not [pid for pid in pids if _runs(pid)]
    assert "INTERRUPTED: 2 tests ran, of 6" in output
    sessions = {session.backend: session for session in load(fake.results)}
    assert {session.status for session in sessions.values()} == {"interrupted"}
    first, second, third = sessions["fake"].results
    assert (first.outcome, first.observations[0].array.tolist()) == ("passed", [1, 1, 1])
    assert not second.ran
    assert not third.ran
    assert second.reason == third.reason == "not run: the check was interrupted"
    assert sessions["third"].message == "not begun: the check was interrupted"
    assert json.loads((fake.cwd / "all.json").read_text())["exit"] == 130
    assert int(ET.parse(fake.cwd / "all.xml").getroot().get("errors")) == 4 + 3  # tests that did not run, and sessions
    again = fake.run("report", str(fake.results))
    assert again.returncode == 0
    assert again.stdout.strip() in output


def test_a_check_that_is_killed_takes_its_tests_with_it_and_its_results_are_no_whole_ones(fake):
    process, pids = hanging(fake, "fake")
    process.kill()
    process.communicate(timeout=60)
    assert not _runs(pids[0])
    os.kill(pids[1], signal.SIGKILL)  # nobody is left to know of it
    with pytest.raises(ResultsError, match="half written"):
        load(fake.results)


def test_a_second_interrupt_ends_a_report_that_takes_too_long(fake):
    fake.backend()
    fake.suite("def test_a(): pass")
    driver = "import time\nfrom unigrad_conformance import checking\nchecking.report_text = lambda _: time.sleep(300)\n"
    fake.write("site/slow_report.py", driver)
    process = fake.start("check", "fake", "--results", str(fake.results), driver="import slow_report")
    while not (fake.results / "fake.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.fixture
def ready(fake):
    fake.backend()
    fake.suite("def test_a(record): record('x', np.arange(2**16) * 1.5, terms=1, reason='r')\n")
    return fake


def test_results_that_have_no_room_are_told_and_the_report_stands(ready):
    """The limit on the size of a file fails a write just as a full disk does, in the middle of it."""
    lines = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (2**15, 2**15))\n"
    ready.write("site/small_files.py", lines)
    process = ready.run(
        "check", "fake", "--results", str(ready.results), "--junit", "all.xml", driver="import small_files"
    )
    assert process.returncode == 2
    assert f"cannot keep the results of fake in {ready.results}: File too large" in process.stderr
    assert "KEPT: 1 tests on fake" in process.stdout
    assert "Traceback" not in process.stderr
    assert (ready.cwd / "all.xml").exists()
    with pytest.raises(ResultsError, match="half written"):
        load(ready.results)
    assert sorted(file.name for file in ready.results.iterdir()) == ["fake.unfinished"]


@pytest.mark.parametrize("option", ["--json", "--junit", "--html"])
def test_a_device_without_room_is_no_lost_report(ready, option):
    process = ready.run("check", "fake", option, "/dev/full")
    assert process.returncode == 2
    assert "cannot write the file /dev/full: No space left on device" in process.stderr
    assert "KEPT: 1 tests on fake" in process.stdout
    assert Path("/dev/full").is_char_device()


def test_what_failed_stays_a_failure_where_a_file_cannot_be_written(ready):
    ready.suite("def test_a(): assert False")
    assert ready.run("check", "fake", "--json", "/dev/full").returncode == 1


def test_a_report_that_cannot_be_printed(ready):
    with Path("/dev/full").open("w") as full:
        process = ready.start("check", "fake", "--json", "all.json", stdout=full)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert errors.splitlines()[-1] == "unigrad: [Errno 28] No space left on device"
    assert "Traceback" not in errors
    assert json.loads((ready.cwd / "all.json").read_text())["exit"] == 0


def test_a_reader_that_leaves_is_no_error_of_the_check(ready):
    reading, writing = os.pipe()
    os.close(reading)
    process = ready.start("check", "fake", "--json", "all.json", stdout=writing, stderr=writing)
    os.close(writing)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads((ready.cwd / "all.json").read_text())["exit"] == 0


def test_no_room_for_temporary_folders_is_told(ready):
    process = ready.run("check", "fake", TMPDIR="/proc", TEMP="/proc", TMP="/proc", driver=NO_TEMPORARY)
    assert process.returncode == 2
    assert process.stderr.startswith("unigrad: ")
    assert "No usable temporary directory" in process.stderr


NO_TEMPORARY = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc']"


@pytest.mark.parametrize("option", ["--json", "--junit", "--html", "--results"])
@pytest.mark.parametrize("place", ["/proc/x", "/proc/x/y", "a-file/x"])
def test_a_place_that_cannot_be_written_is_told_before_anything_runs(ready, option, place):
    (ready.cwd / "a-file").write_text("")
    process = ready.run("check", "fake", option, place)
    assert process.returncode == 2
    assert process.stderr.startswith("unigrad: cannot write "), process.stderr
    assert len(process.stderr.splitlines()) == 1
    assert process.stdout == ""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_finished_leaves_the_one_before(tmp_path, monkeypatch, code):
    path = tmp_path / "all.json"
    path.write_text("before")

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    with Output(path) as output:
        monkeypatch.setattr(outputs.Path, "write_text", fail)
        with pytest.raises(OutputError, match=os.strerror(code)):
            output.write("after")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["all.json"]


def test_a_pipe_or_device_is_written_into_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with Output(pipe) as output:
        output.write("text")
    reader.join(30)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_test_that_writes_without_end_does_not_fill_the_disk(ready):
    ready.suite(
        "import resource\n"
        "def test_a(): assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 2**30\n"
        "def test_b(): assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0\n"
    )
    process = ready.check("fake")
    assert process.returncode == 0, process.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2**30


def test_a_test_that_spoils_the_folder_of_results_spoils_nothing(ready):
    ready.suite(
        f"import pathlib\nFOLDER = {str(ready.results)!r}\n"
        "def test_a():\n"
        "    for name in os.listdir(FOLDER): os.remove(f'{FOLDER}/{name}')\n"
        "    for name in ('fake.json', 'fake.npz', 'fake.unfinished'): pathlib.Path(FOLDER, name).write_bytes(b'\\xff{')\n"
    )
    process = ready.check("fake")
    assert process.returncode == 0
    assert [result.outcome for result in load(ready.results)[0].results] == ["passed"]


def test_a_test_that_puts_a_folder_where_results_go_is_told(ready):
    ready.suite(f"def test_a(): os.makedirs({str(ready.results / 'fake.json' / 'x')!r})")
    process = ready.check("fake")
    assert process.returncode == 2
    assert f"cannot keep the results of fake in {ready.results}" in process.stderr
    assert "KEPT: 1 tests" in process.stdout


HOSTILE = "raise SystemExit('hostile')"
PLANTED = ("conftest", "sitecustomize", "usercustomize", "pytest", "_pytest/__init__", "unigrad/__init__", "torch/__init__",
           "numpy/__init__", "rich/__init__", "unigrad_conformance/__init__", "json", "argparse", "pluggy", "fakeframework")  # fmt: skip
SETTINGS = {
    "pytest.ini": "[pytest]\naddopts = --nonsense\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--nonsense'\n",
    "tox.ini": "[pytest]\naddopts = --nonsense\n",
    "setup.cfg": "[tool:pytest]\naddopts = --nonsense\n",
    ".coveragerc": "[run]\nnonsense = yes\n",
}


def plant(folder):
    for name in PLANTED:
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(HOSTILE)
    for name, text in SETTINGS.items():
        (folder / name).write_text(text)


def test_the_folder_of_the_caller_changes_nothing(fake):
    fake.backend()
    fake.suite("def test_a(): assert not os.path.exists('conftest.py')\ndef test_b(): pass\n")
    plant(fake.cwd)
    control = subprocess.run([sys.executable, "-c", "import torch"], cwd=fake.cwd, capture_output=True, text=True)
    assert control.stderr == "hostile\n"
    settings = {
        "PYTEST_ADDOPTS": "--nonsense",
        "PYTEST_PLUGINS": "nonsense",
        "PYTHONOPTIMIZE": "2",
        "PYTHONWARNINGS": "error",
    }
    process = fake.check("fake", **settings)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "KEPT: 2 tests on fake" in process.stdout


def test_asserts_hold_whatever_python_is_told(fake):
    fake.backend()
    fake.suite("def test_a(): assert False")
    assert fake.check("fake", PYTHONOPTIMIZE="2").returncode == 1


def test_the_command_as_a_module_takes_nothing_from_the_folder_of_the_caller(tmp_path):
    folder = tmp_path / "cwd"
    plant(folder)
    (folder / "unigrad_conformance/__init__.py").unlink()  # what is found there before any code of ours runs
    (folder / "unigrad_conformance").rmdir()
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "unigrad_conformance.cli", "--version"]
    process = subprocess.run(command, cwd=folder, env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    assert re.fullmatch(r"unigrad \S+\n", process.stdout)


def _runs(pid):
    for _ in range(50):  # an orphan that was killed is there until init has collected it
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


def test_a_terminal_that_goes_away_ends_the_check_and_keeps_its_results(fake):
    fake.backend()
    pids = fake.root / "pids"
    fake.suite(HANG.format(pids=str(pids)))
    terminal, theirs = os.openpty()
    process = fake.start("check", "fake", "--results", str(fake.results), stdout=theirs, stderr=theirs)
    os.close(theirs)
    drained = threading.Thread(target=drain, args=(terminal,))
    drained.start()
    while not pids.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    os.close(terminal)
    process.communicate(timeout=60)
    drained.join(30)
    (session,) = load(fake.results)
    assert (session.status, session.count("passed")) == ("interrupted", 1)
    assert not [pid for pid in map(int, pids.read_text().split()) if _runs(pid)]


def drain(terminal):
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        return

"""What a test of a backend can do to its process (design section 12): it is the result of that test, and the rest goes on."""

import os
import re
import time
from pathlib import Path

import pytest
from unigrad_conformance.results import load

SAMPLES = """
import ctypes, os, signal, subprocess, sys, threading, time
import numpy as np

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)", __file__]

def segfault():
    ctypes.string_at(0)

def abort():
    os.write(2, b"backend: cannot go on\\n")
    os.abort()

def end_silently():
    os._exit(0)

def end_like_out_of_memory():
    os.kill(os.getpid(), signal.SIGKILL)

def hang():
    time.sleep(300)

def hang_and_hold_the_interpreter():
    ctypes.PyDLL(None).sleep(300)

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def exhaust_memory():
    kept = []
    for _ in range(64):  # 2 GiB, should nobody stop it
        kept.append(np.ones(2**22))
        time.sleep(0.02)

def ask_for_too_much():
    np.ones(2**55)

def leave_the_program():
    raise SystemExit(0)

def interrupt():
    raise KeyboardInterrupt

def interrupt_the_main_thread():
    import _thread
    _thread.interrupt_main()
    time.sleep(1)

def write_garbage():
    for descriptor in (1, 2):
        os.write(descriptor, bytes(range(256)) * 300)
    print("\\x1b[2J\\x00", file=sys.stderr)

def write_garbage_and_fail():
    write_garbage()
    raise RuntimeError("\\x1b[31m]]> </testcase> \\x00\\udcff")

def write_into_every_descriptor():
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b'{"event": "end"}\\n{"event": "result", "id": 1}\\n[[[[{\\xff\\n' + b"garbage" * 100)
        except OSError:
            pass

def close_every_descriptor():
    os.closerange(3, 256)

def take_every_descriptor():
    os.closerange(3, 256)
    while os.open(os.devnull, os.O_WRONLY) < 100:
        pass

def close_output():
    os.close(1)
    os.close(2)

def remove_the_folder():
    import shutil
    shutil.rmtree(os.getcwd())

def go_on_twice():
    if os.fork():
        os.wait()

def crash_in_a_child():
    if os.fork() == 0:
        os.abort()
    os.wait()

def leave_a_child():
    globals()['kept'] = subprocess.Popen(SLEEP)

def leave_a_daemon():
    for descriptor in range(3, 64):
        try:
            os.set_inheritable(descriptor, True)
        except OSError:
            pass
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True, close_fds=False)"
    subprocess.run([sys.executable, "-c", start, *SLEEP], close_fds=False, start_new_session=True)

def leave_a_fork():
    if os.fork() == 0:
        os.setsid()
        time.sleep(300)
        os._exit(0)

def stop_the_session(request):
    request.session.shouldfail = "enough"

def crash_after_the_test(request):
    class Plugin:
        def pytest_runtest_logfinish(self):
            os.abort()
    request.config.pluginmanager.register(Plugin())

def break_pytest(request):
    class Plugin:
        def pytest_runtest_makereport(self):
            raise ZeroDivisionError
    request.config.pluginmanager.register(Plugin())

def raise_what_has_no_text():
    raise Unprintable

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")
    __repr__ = __str__
"""
# What each deed gives: the ending, and what the reason holds. A passed test has neither.
DEEDS = {
    "segfault": ("SIGSEGV", "process died (signal 11, SIGSEGV) in this test"),
    "abort": ("SIGABRT", "process died (signal 6, SIGABRT) in this test"),
    "end_silently": ("exit code 0", "process died (exit code 0) in this test"),
    "end_like_out_of_memory": ("SIGKILL", "process died (signal 9, SIGKILL; is memory short?) in this test"),
    "hang": ("time limit", "killed after the limit of 5 s (--test-timeout) in this test"),
    "hang_and_hold_the_interpreter": ("time limit", "killed after the limit of 5 s (--test-timeout) in this test"),
    "stop": ("time limit", "killed after the limit of 5 s (--test-timeout) in this test"),
    "exhaust_memory": ("memory limit", "killed at the limit of 0.49 GiB of memory (--memory) in this test"),
    "ask_for_too_much": ("", "Unable to allocate"),
    "leave_the_program": ("", "SystemExit"),
    "interrupt": ("", "raised KeyboardInterrupt, which would end the whole session"),
    "interrupt_the_main_thread": ("", "raised KeyboardInterrupt, which would end the whole session"),
    "write_garbage": ("", ""),
    "write_garbage_and_fail": ("", "RuntimeError: \x1b[31m]]> </testcase>"),
    "write_into_every_descriptor": ("", ""),
    "close_every_descriptor": ("exit code 70", "it could no longer tell its results) in this test"),
    "take_every_descriptor": ("exit code 70", "it could no longer tell its results) in this test"),
    "close_output": None,  # what becomes of it is pytest's affair; it ends, and the rest goes on
    "remove_the_folder": ("", ""),
    "go_on_twice": ("", ""),
    "crash_in_a_child": ("", ""),
    "leave_a_child": ("left a process", "left a process behind, which was ended: "),
    "leave_a_daemon": ("left a process", "left a process behind, which was ended: "),
    "leave_a_fork": ("left a process", "left a process behind, which was ended: "),
    "crash_after_the_test": ("SIGABRT", "process died (signal 6, SIGABRT) right after this test"),
    "stop_the_session": ("exit code 1", "the session was ended early (exit code 1) right after this test"),
    "break_pytest": ("exit code 3", "process died (exit code 3: pytest broke) in this test"),
    "raise_what_has_no_text": ("", "Unprintable"),
}
WITH_REQUEST = ("stop_the_session", "crash_after_the_test", "break_pytest")
SUITE = "".join(
    f"@pytest.mark.clause('{clause}')\n"
    f"def test_{deed}(samples, record, request):\n"
    f"    record('pid', os.getpid())\n"
    f"    samples.{deed}({'request' if deed in WITH_REQUEST else ''})\n\n"
    f"def test_after_{deed}():\n"
    f"    with open(os.environ['RAN'], 'a') as ran:\n        ran.write('{deed}\\n')\n\n"
    for deed, clause in zip(DEEDS, ["C4"] + ["M1"] * len(DEEDS), strict=False)
)


@pytest.fixture(scope="module")
def survived(module_fake):
    module_fake.backend()
    module_fake.write("site/fake_backend/samples.py", SAMPLES)
    module_fake.suite(SUITE)
    files = ("--junit", "all.xml", "--json", "all.json")
    limits = ("--test-timeout", "5", "--memory", "500M")
    module_fake.process = module_fake.check("fake", *limits, *files, RAN=str(module_fake.root / "ran"))
    return module_fake


def test_every_test_has_its_result_and_the_rest_goes_on(survived):
    outcomes = survived.outcomes()
    assert len(outcomes) == 2 * len(DEEDS)
    assert survived.process.returncode == 1
    assert "Traceback" not in survived.process.stderr
    for deed in DEEDS:
        assert outcomes[f"test_after_{deed}"]["outcome"] == "passed", outcomes[f"test_after_{deed}"]
    assert all(result["ran"] for result in outcomes.values())
    (session,) = load(survived.results)
    assert (session.status, session.message) == ("complete", "")


@pytest.mark.parametrize("deed", [deed for deed, expected in DEEDS.items() if expected is not None])
def test_what_a_test_does_to_its_process_is_its_result(survived, deed):
    ending, reason = DEEDS[deed]
    result = survived.outcomes()[f"test_{deed}"]
    assert result["outcome"] == ("failed" if reason else "passed"), result
    assert result["ending"] == ending
    assert reason in result["reason"]
    repeat = f"run it alone: unigrad check fake -k test_fake.py::test_{deed}\n"
    assert (repeat in survived.process.stdout) == bool(reason)


def test_the_cell_says_why(survived):
    cells = {line.split()[0]: line for line in survived.process.stdout.splitlines() if re.match(r"(C4|M1) ", line)}
    assert "failed: SIGSEGV" in cells["C4"]
    endings = {ending for ending, _ in filter(None, DEEDS.values())} - {"", "SIGSEGV"}
    assert all(ending in cells["M1"] for ending in endings), cells["M1"]


def test_where_it_was_and_what_it_said_is_told(survived):
    outcomes = survived.outcomes()
    assert "Fatal Python error: Segmentation fault" in outcomes["test_segfault"]["details"]
    assert "backend: cannot go on" in outcomes["test_abort"]["details"]
    for deed in ("segfault", "hang", "hang_and_hold_the_interpreter"):
        details = outcomes[f"test_{deed}"]["details"]
        assert re.search(rf"samples.py\", line \d+ in {deed}\n", details), details
        assert "/_pytest/" not in details


def test_nothing_is_left_running_and_no_folder_stays(survived):
    pids = {observation["exact"] for result in survived.outcomes().values() for observation in result["observations"]}
    assert len(pids) > 1, "each test had its own process, or none"
    assert not [pid for pid in pids if _runs(pid)]
    left = [line for line in _command_lines() if str(survived.root) in line]
    assert not left


def test_a_process_lasts_until_a_test_ends_it(survived):
    """Isolation costs no process per test."""
    outcomes = survived.outcomes()
    one = [
        outcomes[f"test_{deed}"]["observations"][0]["exact"]
        for deed in ("leave_the_program", "interrupt", "write_garbage")
    ]
    assert len(set(one)) == 1


def test_a_child_that_goes_on_as_if_it_were_the_process_runs_no_other_test(survived):
    assert (survived.root / "ran").read_text().splitlines() == list(DEEDS)


def test_a_report_moves_no_cursor(survived):
    assert not re.search(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", survived.process.stdout)
    assert r"RuntimeError: \x1b[31m]]> </testcase> \x00\udcff" in survived.process.stdout


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _command_lines():
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                yield (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue


@pytest.mark.parametrize(
    ("deed", "status", "message"),
    [
        pytest.param("import os; os.abort()", "died", "process died (signal 6, SIGABRT)", id="crash"),
        pytest.param("import os; os._exit(0)", "died", "process died (exit code 0)", id="silent-exit"),
        pytest.param("raise SystemExit(0)", "unavailable", "backend 'fake' is broken", id="exit"),
        pytest.param(
            "import time; time.sleep(300)", "timeout", "killed after the limit of 12 s (--timeout)", id="hang"
        ),
        pytest.param("raise KeyboardInterrupt", "died", "process died (exit code 2: pytest was", id="interrupt"),
    ],
)
def test_a_backend_that_dies_as_it_is_imported_is_one_row(fake, deed, status, message):
    fake.backend()
    fake.backend("other", framework="otherframework")
    fake.framework("otherframework")
    fake.write("site/fake_backend/block.py", deed)
    fake.suite("def test_a(): pass\ndef test_b(): pass\n")
    process = fake.check("fake", "other", "-j", "1", "--timeout", "12")
    sessions = {session.backend: session for session in load(fake.results)}
    assert process.returncode == 1
    assert sessions["fake"].status == status
    assert sessions["fake"].message.startswith(message)
    assert sessions["other"].status == "complete"
    assert sessions["other"].count("passed") == 2
    row = next(line for line in process.stdout.splitlines() if line.startswith("G1 "))
    assert re.search(rf"failed: {status}\s+kept", row)


def test_a_process_that_does_not_end_is_ended(fake):
    fake.backend()
    fake.suite("import threading\ndef test_a():\n    threading.Thread(target=time.sleep, args=(300,)).start()\n")
    process = fake.check("fake", "--timeout", "6")
    assert process.returncode == 1
    (session,) = load(fake.results)
    assert (session.status, session.count("passed")) == ("timeout", 1)


def test_the_limit_of_a_backend_holds_for_all_its_processes(fake):
    fake.backend()
    fake.suite("@pytest.mark.parametrize('i', range(40))\ndef test_a(i):\n    time.sleep(1)\n    os.abort()\n")
    began = time.monotonic()
    process = fake.check("fake", "--timeout", "8")
    assert time.monotonic() - began < 90
    assert process.returncode == 1
    (session,) = load(fake.results)
    assert session.status == "timeout"
    assert session.results[0].ending == "SIGABRT"
    assert session.results[-1].reason == "not run: killed after the limit of 8 s (--timeout)"
    assert not session.results[-1].ran


@pytest.mark.parametrize("deed", ["import os; os.abort()", "import os; os._exit(0)", "raise KeyboardInterrupt"])
def test_a3_a_declaration_that_ends_the_process_is_a_row(fake, deed):
    fake.backend("deadly")
    fake.backend()
    fake.write("site/deadly_backend/__init__.py", deed)
    fake.suite("def test_a(): pass\n")
    process = fake.check()
    assert process.returncode == 1
    assert "backend 'deadly' is broken: a process that reads its declaration ends with" in process.stdout
    assert {session.backend: session.status for session in load(fake.results)} == {
        "deadly": "unavailable",
        "fake": "complete",
    }
    listed = fake.run(
        "backends", driver="from unigrad_conformance import cli; cli.backend_names = lambda: ['deadly', 'fake']"
    )
    assert listed.returncode == 0
    assert re.search(r"^deadly +broken", listed.stdout, re.MULTILINE)
    assert re.search(r"^fake +ready", listed.stdout, re.MULTILINE)

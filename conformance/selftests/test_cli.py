"""The command: exit codes, no traceback for a user's mistake, and what needs which packages."""

import json
import re
import subprocess
import sys

import pytest
from unigrad_conformance import cli
from unigrad_conformance.clauses import clauses_named
from unigrad_conformance.report import exit_code, matrix, report_text
from unigrad_conformance.results import Result, Session

import unigrad

BLOCKED = """
import sys
for name in ("pytest", "rich", "jinja2", "hypothesis"):
    sys.modules[name] = None
from unigrad_conformance import cli
code = cli.main(sys.argv[1:])
frameworks = sorted({"torch", "tensorflow", "mindspore", "paddle"} & set(sys.modules))
print("frameworks:", frameworks)
sys.exit(code)
"""


@pytest.fixture
def ready(fake):
    fake.backend()
    fake.suite("def test_a(): pass\ndef test_b(dtype): pass\n")
    return fake


def mistake(process, *messages):
    """The process ended with 2 and said why in one line."""
    assert process.returncode == 2
    assert "Traceback" not in process.stderr + process.stdout
    for message in messages:
        assert message in process.stderr


def test_a_green_check_exits_0_and_writes_json(ready):
    file = ready.cwd / "all.json"
    process = ready.check("fake", "--json", "all.json")
    assert process.returncode == 0
    assert process.stdout.rstrip().endswith("KEPT: 2 tests on fake")
    assert "fake: done, 2/2 tests" in process.stderr
    data = json.loads(file.read_text())
    assert data["exit"] == 0
    assert [result["outcome"] for result in data["sessions"][0]["results"]] == ["passed", "passed"]
    assert sorted(path.name for path in ready.cwd.iterdir()) == ["all.json"]


def test_report_gives_the_same_tables_from_results_alone(ready):
    checked = ready.check("fake")
    again = ready.run("report", str(ready.results))
    assert again.returncode == 0
    assert again.stdout.rstrip() in checked.stdout
    assert "G1" in again.stdout
    markdown = ready.run("report", "--markdown", str(ready.results)).stdout.splitlines()
    assert markdown[:2] == ["| clause | promise | fake |", "| --- | --- | --- |"]
    assert "| G1 | write replaces, add sums | kept |" in markdown


def test_a_failure_exits_1_with_a_command_that_repeats_it(ready):
    ready.suite("@pytest.mark.parametrize('x', [1, 2])\ndef test_f(x): assert x == 1")
    process = ready.check()
    assert process.returncode == 1
    assert "run it alone: unigrad check fake -k 'test_fake.py::test_f[2]'" in process.stdout
    alone = ready.check("fake", "-k", "test_fake.py::test_f[2]")
    assert alone.returncode == 1
    assert set(ready.outcomes()) == {"test_f[2]"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["fakee"], "no backend named 'fakee'; installed: ", id="unknown"),
        pytest.param(["fake", "fake"], "backend 'fake' is named twice", id="twice"),
        pytest.param(["fake", "-k", "G99, G2"], "there is no clause G99; the clauses are A1, ", id="clause"),
        pytest.param(["fake", "-k", "g2 or c4 or c77"], "there is no clause C77", id="clauses"),
        pytest.param(["../fake=python"], "is no NAME or NAME=PYTHON", id="path"),
        pytest.param(["fake", "--json", "absent/x.json"], "cannot write the file absent/x.json", id="json"),
        pytest.param(["fake", "--json", "."], "cannot write the file .: it is a folder", id="json-folder"),
        pytest.param(["fake", "-j", "0"], "0 is not a positive number", id="jobs"),
        pytest.param(["fake", "-j", "1.5"], "1.5 is not a positive number", id="part-of-a-job"),
        pytest.param(["fake", "--timeout", "x"], "x is not a positive number", id="timeout"),
        pytest.param(["fake", "--junit", ""], "argument --junit: the name is empty", id="empty-name"),
        pytest.param(["fake", "--json", "x", "--html", "./x"], "--json and --html name the same file", id="one-file"),
        pytest.param(["fake="], "'fake=' names no interpreter after '='", id="no-interpreter"),
        pytest.param(["fake", "--test-timeout", "0"], "0 is not a positive number", id="no-time"),
        pytest.param(["fake", "--memory", "4 apples"], "4 apples is not a size such as 512M or 4G", id="memory"),
        pytest.param(["fake", "--memory", "0"], "0 is not a size", id="no-memory"),
        pytest.param(["fake", "-j", "0"], "0 is not a positive number", id="no-jobs"),
        pytest.param(["fake", "--mutants"], "takes no names", id="mutants"),
    ],
)
def test_mistakes_are_told_before_anything_runs(ready, arguments, message):
    process = ready.check(*arguments)
    mistake(process, message)
    assert not (ready.results / "fake.json").exists()


@pytest.mark.parametrize("option", ["--results", "--json"])
def test_an_empty_name_is_not_the_present_folder(ready, option):
    mistake(ready.run("check", "fake", option, ""), "the name is empty")
    mistake(ready.run("report", ""), "the name is empty")
    assert not list(ready.cwd.iterdir())


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_the_caller_has_closed(ready, closed):
    """As by ``>&-`` in a shell: Python then has None in its place."""
    number = {"stdout": 1, "stderr": 2}[closed]
    process = ready.start(
        "check",
        "fake",
        "--results",
        str(ready.results),
        driver=f"import os, sys; os.close({number}); sys.{closed} = None",
    )
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    assert {result["outcome"] for result in ready.outcomes().values()} == {"passed"}
    assert "Traceback" not in output + errors


def test_a_framework_that_is_named_and_absent_is_a_mistake(ready):
    ready.backend("absent", framework="absentframework")
    mistake(ready.check("fake", "absent"), "Install it with: pip install absentframework")


def test_an_unknown_backend_of_another_interpreter(ready):
    process = ready.check(f"fakee={sys.executable}")
    assert process.returncode == 2
    assert "no backend named 'fakee'" in process.stdout


def test_a_results_folder_that_cannot_be_written(ready):
    ready.write("results", "a file")
    mistake(ready.check("fake"), "cannot write into the folder")


@pytest.mark.parametrize("pattern", ["nothing_of_this_name", "a and", "test_fake.py::absent", "R1"])
def test_a_check_that_ran_no_test_exits_2(ready, pattern):
    process = ready.check("fake", "-k", pattern)
    assert process.returncode == 2
    assert "NO TEST RAN" in process.stdout
    assert "Traceback" not in process.stdout + process.stderr


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("a1", "A1 is checked by selftests"),
        ("Y2", "Y2 is checked by unigrad bench"),
        ("X2, Y2", "X2 is checked by a check of several backends; Y2 is checked by unigrad bench"),
    ],
)
def test_a_clause_that_is_checked_elsewhere_says_where(ready, pattern, place):
    process = ready.check("fake", "-k", pattern)
    assert process.returncode == 2
    assert process.stdout.rstrip().endswith(f"none matches {pattern!r}; {place}")


@pytest.mark.parametrize("pattern", ["G1 C4", "G1,C4", "g1, c4", "G1 or C4"])
def test_several_clauses_select_the_tests_of_each(ready, pattern):
    ready.suite(
        "def test_a(): pass\n"
        "pytestmark = []\n"
        "test_a = pytest.mark.clause('G1')(test_a)\n"
        "@pytest.mark.clause('C4')\ndef test_b(): pass\n"
        "@pytest.mark.clause('M1')\ndef test_c(): pass\n"
    )
    assert ready.check("fake", "-k", pattern).returncode == 0
    assert set(ready.outcomes()) == {"test_a", "test_b"}


@pytest.mark.parametrize(
    ("text", "names"),
    [("G1", ("G1",)), ("g1 , G1", ("G1",)), ("G1 and C4", ()), ("test_g1", ()), ("G1 or test_b", ()), ("", ())],
)
def test_what_names_clauses_and_nothing_else(text, names):
    assert clauses_named(text) == names


def test_the_version_is_told(ready):
    process = ready.run("--version")
    assert (process.returncode, process.stdout) == (0, f"unigrad {unigrad.__version__}\n")


def test_bench_of_a_backend_without_its_module_is_told(ready):
    message = (
        "unigrad: backend 'fake' has no module fake_backend.bench, which unigrad bench needs; see unigrad.samples.Bench"
    )
    process = ready.run("bench", "fake")
    mistake(process, message)
    assert len(process.stderr.splitlines()) == 1


def test_report_of_no_results_is_a_mistake(ready):
    mistake(ready.run("report", "absent"), "no folder absent")


def test_a1_backends_and_report_need_the_base_only(ready):
    ready.check("fake")

    def blocked(*arguments):
        paths = ":".join([str(ready.site), *filter(None, sys.path)])
        command = [sys.executable, "-c", BLOCKED, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": paths}, timeout=60)

    listed = blocked("backends")
    assert listed.returncode == 0
    assert "fake         ready" in listed.stdout
    assert "guarantees: threads kept" in listed.stdout
    assert listed.stdout.rstrip().endswith("frameworks: []")
    reported = blocked("report", str(ready.results))
    assert reported.returncode == 0
    assert "G1" in reported.stdout
    mistake(blocked("check", "fake"), "this needs pytest and rich", "pip install 'unigrad[check]'")


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("2K", 2048), ("1.5m", 3 * 2**19), ("4G", 2**32), ("4GB", 2**32), ("1GiB", 2**30), ("1T", 2**40)],
)
def test_sizes_of_memory(text, size):
    assert cli._bytes(text) == size


def result(outcome, **options):
    return Result("test_a.py::test_a", outcome, ("G1",), **options)


@pytest.mark.parametrize(
    ("sessions", "code"),
    [
        pytest.param([Session("a", results=(result("passed"),))], 0, id="passed"),
        pytest.param([Session("a", results=(result("refused"), result("known failure")))], 0, id="refused"),
        pytest.param([Session("a", results=(result("no sample"),))], 1, id="no-sample"),
        pytest.param([Session("a", results=(result("no sample", mandatory=False),))], 0, id="no-sample-optional"),
        pytest.param([Session("a", results=(result("failed"),))], 1, id="failed"),
        pytest.param([Session("a", "died", results=(result("passed"),))], 1, id="died"),
        pytest.param([Session("a", "unavailable")], 1, id="unavailable"),
        pytest.param([Session("a", results=(result("passed"),)), Session("b")], 2, id="one-ran-nothing"),
        pytest.param([Session("a")], 2, id="nothing-ran"),
        pytest.param([], 2, id="no-backend"),
    ],
)
def test_exit_codes(sessions, code):
    assert exit_code(sessions) == code


@pytest.mark.parametrize(
    ("outcomes", "cell", "without_counts"),
    [
        (["passed", "passed"], "kept", "kept"),
        (["passed", "refused"], "refused 1/2", "kept; refused in part"),
        (["refused"], "refused", "refused"),
        (["refused", "known failure"], "known failure 1/2", "known failure in part"),
        (["known failure", "no sample"], "no sample 1/2", "no sample in part"),
        (["failed", "no sample", "passed"], "failed 1/3", "failed"),
    ],
)
def test_a_cell_is_the_worst_of_its_tests(outcomes, cell, without_counts):
    session = Session("a", results=tuple(map(result, outcomes)))
    rows = {row[0]: row[2] for row in matrix([session]).rows}
    assert rows["G1"] == cell
    assert rows["D2"] == "not yet"
    bare = {row[0]: row[2] for row in matrix([session], counts=False).rows}
    assert bare["G1"] == without_counts


def test_a_clause_that_selftests_check_has_no_row_and_is_told_below():
    text = report_text([Session("a", results=(result("passed"),))])
    assert not re.search(r"^(G19|A1) ", text, re.MULTILINE)
    assert re.search(r"^Checked elsewhere: .*\bA1\b.*\bG19\b.* by selftests", text, re.MULTILINE)

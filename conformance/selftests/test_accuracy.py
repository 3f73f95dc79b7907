"""What a backend states of its elementary functions is measured, widens the right bounds, and hides no fault (clause X1)."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from unigrad_conformance.accuracy import FUNCTIONS, LIMIT, Noted, faults, verdict
from unigrad_conformance.compare import agreements
from unigrad_conformance.observations import EPSILON, observe
from unigrad_conformance.page import html_page
from unigrad_conformance.report import report_text
from unigrad_conformance.results import Result, Session

from unigrad.samples import LAYER_KINDS, Accuracy, Operations

UNIT = EPSILON["float32"]
TANH = Accuracy(1e-4, "a short series")


def samples(**stated):
    return SimpleNamespace(accuracy={"float32": stated})


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        pytest.param({"tanh": TANH}, "", id="right"),
        pytest.param({"tanh": Accuracy(1e-2, "fast")}, "is another function", id="hides-faults"),
        pytest.param({"tanh": Accuracy(UNIT**0.5 * 1.001, "fast")}, "is another function", id="just-hides-faults"),
        pytest.param({"tanh": Accuracy(float("nan"), "fast")}, "is another function", id="nan"),
        pytest.param({"tanh": Accuracy(UNIT, "fast")}, "nothing is stated", id="needs-no-statement"),
        pytest.param({"tanh": Accuracy(1e-4, "")}, "has no reason", id="no-reason"),
        pytest.param({"matmul": Accuracy(1e-4, "fast")}, "no function of exp, log", id="not-elementary"),
    ],
)
def test_x1_a_statement_is_refused_before_anything_is_measured(stated, message):
    found = "; ".join(faults(samples(**stated)))
    assert message in found
    assert bool(found) == bool(message)


def test_x1_a_statement_of_an_unknown_dtype_is_refused():
    assert "no dtype" in faults(SimpleNamespace(accuracy={"float33": {"tanh": TANH}}))[0]


@pytest.mark.parametrize(
    ("error", "statement", "message"),
    [
        pytest.param(LIMIT * UNIT, None, "", id="needs-none"),
        pytest.param(LIMIT * UNIT * 1.01, None, "must state", id="unstated"),
        pytest.param(1e-4, TANH, "", id="as-stated"),
        pytest.param(1.01e-4, TANH, "more than the 0.0001", id="worse-than-stated"),
        pytest.param(2.5e-5, TANH, "", id="four-times-better"),
        pytest.param(2.4e-5, TANH, "more than 4 times", id="overstated"),
    ],
)
def test_x1_a_measured_error_is_held_against_its_statement(error, statement, message):
    found = verdict("tanh", "float32", error, statement)
    assert message in found
    assert bool(found) == bool(message)


WORSE = """
from unigrad.samples import Accuracy
from unigrad_numpy import samples

exact = samples.operations.tanh
type(samples.operations).tanh = staticmethod(lambda x: exact(x) * 1.0001)
samples.accuracy = {stated}
"""


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        pytest.param("{}", "must state in 'accuracy'", id="unstated"),
        pytest.param("{'float32': {'tanh': Accuracy(1.1e-4, 'a test')}}", "", id="stated"),
        pytest.param("{'float32': {'tanh': Accuracy(9e-5, 'a test')}}", "more than the 9e-05", id="understated"),
        pytest.param("{'float32': {'tanh': Accuracy(3e-2, 'a test')}}", "another function", id="would-hide-faults"),
    ],
)
def test_x1_the_suite_finds_a_function_that_is_not_as_stated(tmp_path, stated, message):
    (tmp_path / "worse.py").write_text(WORSE.replace("{stated}", stated))
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "worse", "-p", "unigrad_conformance.plugin"]
    command += ["--noconftest", "-p", "no:cacheprovider", "--pyargs", "unigrad_conformance.suite.test_accuracy"]
    command += ["--unigrad-backend=numpy", "--unigrad-select", f"test_accuracy.py::{MEASURES}[float32-tanh]"]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    process = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == (1 if message else 0), process.stdout + process.stderr
    assert message in process.stdout


MEASURES = "test_a_function_is_as_accurate_as_stated"


def test_x1_functions_are_noted_by_what_is_taken():
    """By operation or kind of layer, also inside of another, and each test begins anew."""
    native = SimpleNamespace(tanh=np.tanh, exp=np.exp, matmul=np.matmul)
    noted = Noted(
        SimpleNamespace(
            operations=native,
            layer=lambda kind, **config: kind,
            accuracy={"float32": {"tanh": TANH, "exp": Accuracy(1e-5, "a short one")}},
        )
    )
    assert noted.operations.matmul is np.matmul
    assert noted.least_accurate("float32") is None
    assert noted.layer("attention", heads=1) == "attention"
    assert noted.least_accurate("float32")[0] == "exp"
    assert noted.layer("lstm") == "lstm"
    assert noted.least_accurate("float32") == ("tanh", TANH)
    assert noted.least_accurate("float64") is None
    noted.used.clear()
    assert noted.operations.tanh is np.tanh
    assert noted.least_accurate("float32") == ("tanh", TANH)


def test_x1_every_noted_name_is_an_operation_or_a_kind_of_layer():
    assert set(FUNCTIONS) <= {*vars(Operations), *LAYER_KINDS}


SAMPLES = """
import types
import numpy as np
from unigrad.samples import Accuracy

operations = types.SimpleNamespace(tanh=lambda x: np.tanh(x) * np.float32({factor}), negative=lambda x: -x)
accuracy = {stated}
"""
SUITE = """
X = np.float32([0.5, 2.0])

def test_with(record, samples):
    record("y", samples.operations.tanh(X), terms=2, reason="two roundings")

def test_without(record, samples):
    record("y", samples.operations.negative(X), terms=2, reason="two roundings")

def test_equal(record, samples):
    record("y", samples.operations.tanh(X) > 0.5, reason="")
    record("z", np.float32(samples.operations.tanh(X)[0] > 0), terms=0, reason="a truth")
"""
STATED = "{'float32': {'tanh': Accuracy(2e-4, 'a short series')}}"


def two_backends(fake, factor, stated=STATED):
    for name, values in {"fake": {"factor": 1, "stated": "{}"}, "other": {"factor": factor, "stated": stated}}.items():
        fake.backend(name, framework="fakeframework" if name == "fake" else "otherframework")
        text = SAMPLES
        for key, value in values.items():
            text = text.replace(f"{{{key}}}", str(value))
        fake.write(f"site/{name}_backend/samples.py", text)
    fake.framework("otherframework")
    fake.suite(SUITE)
    page = fake.root / "page.html"
    process = fake.check("fake", "other", "--html", str(page), "--json", str(fake.root / "all.json"))
    return process, page.read_text(), (fake.root / "all.json").read_text()


def test_x1_a_stated_error_widens_what_went_through_the_function_and_says_so(fake):
    process, page, data = two_backends(fake, 1.0001)
    assert process.returncode == 0, process.stdout
    why = "wider by 0.0002 of the largest value: tanh in float32 on other, a short series"
    assert f"bounds: other against fake, 1 of 4 {why}" in process.stdout
    assert f"The bounds of 1 observations are {why}." in page
    assert f"two roundings; {why}" in page
    assert data.count(why) == 2  # at the observation, and at the agreement
    other = fake.outcomes("other")
    wider = {test: [one["error"] for one in result["observations"]] for test, result in other.items()}
    assert wider == {"test_with": [2e-4], "test_without": [0.0], "test_equal": [0.0, 0.0]}


def test_x1_more_than_the_stated_error_differs(fake):
    process, page, _ = two_backends(fake, 1.001)
    assert process.returncode == 1
    assert re.search(r"DIFFERS: other against fake, test_fake.py::test_with, y: value", process.stdout)
    assert "bound because: two roundings; wider by 0.0002 of the largest value: tanh in float32" in process.stdout
    assert "two roundings; wider by 0.0002" in page


def test_x1_a_statement_that_would_hide_a_fault_fails_every_test(fake):
    process, _, _ = two_backends(fake, 1.01, STATED.replace("2e-4", "2e-2"))
    assert process.returncode == 1
    assert all(result["outcome"] == "failed" for result in fake.outcomes("other").values())
    assert "other_backend.samples.accuracy: tanh in float32: an error of 0.02" in process.stdout


def test_x1_the_error_adds_to_the_roundings_and_is_multiplied_by_no_number_of_terms():
    seen = observe("x", np.float32([3.0]), terms=10, reason="ten terms")
    wider = replace(seen, error=1e-4, widened="wider")
    assert wider.bound == pytest.approx(seen.bound + 3e-4)
    for shift, differs in ((2.9e-4, 0), (3.2e-4, 1)):
        shifted = observe("x", np.float32([3.0 + shift]), terms=10, reason="ten terms")
        sessions = [
            Session(name, results=(Result("test_a.py::test_a", "passed", ("G1",), observations=(one,)),))
            for name, one in (("numpy", shifted), ("other", wider))
        ]
        assert len(agreements(sessions)[0].faults) == differs
        assert "bounds: other against numpy, 1 of 1 wider" in report_text(sessions)
        assert "The bounds of 1 observations are wider." in html_page(sessions)


def test_no_backend_but_one_states_an_error():
    """A longer list is a step back: it fails here."""
    backends = Path(__file__).resolve().parents[2] / "backends"
    stating = [
        file.parent.name
        for file in sorted(backends.glob("*/samples.py"))
        if re.search(r"^accuracy\b", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert stating == ["unigrad_mindspore"]

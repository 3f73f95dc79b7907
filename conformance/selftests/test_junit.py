"""JUnit XML: its structure, its counts, which outcome becomes what, and that no text can break it."""

import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from unigrad_conformance.junit import junit_xml
from unigrad_conformance.observations import observe
from unigrad_conformance.report import exit_code
from unigrad_conformance.results import Result, Session

SECONDS = re.compile(r"\d+\.\d{3}")
COUNT = re.compile(r"\d+")
TEXT = re.compile(r".*", re.DOTALL)
# Stricter than the schema that servers go by (https://github.com/pytest-dev/pytest/blob/main/testing/example_scripts/junit-10.xsd):
# exactly these attributes, and children in this order.
SCHEMA = {
    "testsuites": ({"name": TEXT, "tests": COUNT, "failures": COUNT, "errors": COUNT, "time": SECONDS}, ["testsuite"]),
    "testsuite": (
        {"name": TEXT, "tests": COUNT, "failures": COUNT, "errors": COUNT, "skipped": COUNT, "time": SECONDS},
        ["properties", "testcase"],
    ),
    "properties": ({}, ["property"]),
    "property": ({"name": TEXT, "value": TEXT}, []),
    "testcase": ({"name": TEXT, "classname": TEXT, "time": SECONDS}, ["skipped", "error", "failure"]),
    "failure": ({"message": TEXT, "type": TEXT}, []),
    "error": ({"message": TEXT, "type": TEXT}, []),
    "skipped": ({"message": TEXT}, []),
}


def validate(element):
    attributes, children = SCHEMA[element.tag]
    assert set(element.attrib) == set(attributes), element.attrib
    for name, form in attributes.items():
        assert form.fullmatch(element.get(name)), (element.tag, name, element.get(name))
    order = [children.index(child.tag) for child in element]
    assert order == sorted(order)
    if element.tag == "testcase":
        assert len(element) <= 1
    if children:
        assert not (element.text or "").strip()
    for child in element:
        validate(child)


def parsed(sessions):
    """The document, which is valid, has right counts, and is red exactly if the check is."""
    root = ET.fromstring(junit_xml(sessions).encode())
    assert root.tag == "testsuites"
    validate(root)
    for name, tag in {"failures": "failure", "errors": "error", "skipped": "skipped", "tests": "."}.items():
        for suite in root:
            assert int(suite.get(name)) == len(suite.findall(f"testcase/{tag}")), (suite.get("name"), name)
        if name != "skipped":
            assert int(root.get(name)) == sum(int(suite.get(name)) for suite in root)
    red = int(root.get("failures")) + int(root.get("errors"))
    assert (red > 0) == (exit_code(sessions) == 1)
    return root


def result(outcome, name="a", **options):
    return Result(f"test_x.py::test_{name}[float32]", outcome, ("G1",), duration_s=0.25, **options)


@pytest.mark.parametrize(
    ("one", "tag", "message"),
    [
        pytest.param(result("passed"), None, None, id="passed"),
        pytest.param(result("failed", reason="assert 0\nmore"), "failure", "assert 0", id="failed"),
        pytest.param(result("no sample", reason="no layer"), "failure", "no layer", id="no-sample"),
        pytest.param(
            result("no sample", reason="no layer", mandatory=False), "skipped", "no sample: no layer", id="excused"
        ),
        pytest.param(result("refused", reason="not declared"), "skipped", "refused: not declared", id="refused"),
        pytest.param(
            result("known failure", reason="adds", url="https://example.org/1"),
            "skipped",
            "known failure: adds https://example.org/1",
            id="known-failure",
        ),
        pytest.param(result("failed", reason="process died", ending="SIGSEGV"), "error", "process died", id="crash"),
        pytest.param(result("failed", reason="not run: x", ran=False), "error", "not run: x", id="not-run"),
    ],
)
def test_what_becomes_of_an_outcome(one, tag, message):
    (suite,) = parsed([Session("fake", results=(one,))])
    case = suite.find("testcase")
    assert (case.get("classname"), case.get("name")) == ("unigrad.fake.test_x", "test_a[float32]")
    assert case.get("time") == "0.250"
    assert [(child.tag, child.get("message")) for child in case] == ([] if tag is None else [(tag, message)])
    if tag in ("failure", "error"):
        assert "run it alone: unigrad check fake -k 'test_x.py::test_a[float32]'" in case[0].text
        assert "clauses: G1" in case[0].text


@pytest.mark.parametrize("status", ["unavailable", "error", "died", "timeout"])
def test_a_session_without_tests_is_an_error(status):
    (suite,) = parsed([Session("fake", status=status, message="why\nand where")])
    (case,) = suite.findall("testcase")
    assert (case.get("name"), case[0].tag, case[0].get("message")) == (status, "error", "why")
    assert case[0].text == "why\nand where"


def test_a_disagreement_is_a_failure_of_its_own():
    def session(name, value):
        observed = observe("gradient", np.array([value]), terms=1, reason="one rounding")
        return Session(name, results=(result("passed", observations=(observed,)),))

    _, other = parsed([session("numpy", 1.0), session("other", 2.0)])
    passed, differs = other.findall("testcase")
    assert len(passed) == 0
    assert differs.get("name") == "test_x.py::test_a[float32] gradient"
    assert differs[0].get("message") == "differs from the reference: value [0]"
    assert "because: one rounding" in differs[0].text


HOSTILE = [
    "".join(map(chr, range(0x300))),
    "]]></failure><testcase name='x'/>\"'&amp;&#0;<!--",
    "\ud800\udfff\udcff",
    "\ufffe\uffff\U0001fffe \U0010ffff é 漢 \U0001f600",
    "\x1b[31mred\x1b[0m \r\n \x85\u2028",
]


@pytest.mark.parametrize("text", HOSTILE, ids=["every-control", "markup", "surrogates", "no-characters", "terminal"])
def test_no_text_breaks_it_and_every_text_can_be_read(text):
    one = Result(f"test_x.py::{text}", "failed", ("G1",), reason=text, details=text)
    known = Result(f"{text}.py::y", "known failure", ("G1",), reason=text, url=text)
    session = Session("fake", "died", text, framework=text, results=(one, known))
    (suite,) = parsed([session])
    told = "".join(suite.find("testcase/failure").itertext())
    assert "run it alone" in told
    for character in filter(str.isprintable, text):
        assert character in told
    assert "\x1b" not in told
    assert ("\\x1b" in told) == ("\x1b" in text)


def test_what_is_written_for_a_check_is_valid(fake):
    fake.backend()
    fake.backend("other", framework="otherframework")
    fake.framework("otherframework", "import os; os.abort()")
    fake.suite(
        "def test_a(): pass\n"
        "def test_b(): raise RuntimeError('\\x00\\x1b]]> <a>')\n"
        "def test_c(): os.abort()\n"
        "@pytest.mark.parametrize('x', ['\\x00<&\\x1b'])\ndef test_d(x): assert False\n"
    )
    process = fake.run("check", "fake", "other", "--junit", "all.xml")
    assert process.returncode == 1
    root = ET.parse(fake.cwd / "all.xml").getroot()
    validate(root)
    first, second = root
    tags = {case.get("name").partition("[")[0]: [child.tag for child in case] for case in first.findall("testcase")}
    assert tags == {"test_a": [], "test_b": ["failure"], "test_c": ["error"], "test_d": ["failure"]}
    assert [case[0].tag for case in second.findall("testcase")] == ["error"]
    names = {item.get("name"): item.get("value") for item in first.find("properties")}
    assert names["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "SIGABRT" in first.find("testcase[@name='test_c']/error").get("message")

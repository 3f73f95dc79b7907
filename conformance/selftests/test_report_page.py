"""The HTML page as text: what it holds, that it loads nothing, and that no text of a result is markup (design section 12)."""

import base64
import hashlib
import importlib.util
import math
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from unigrad_conformance import page as page_module
from unigrad_conformance.compare import Comparison, Measured, agreements
from unigrad_conformance.page import html_page
from unigrad_conformance.page.chart import bars, ticks
from unigrad_conformance.page.failures import failures_of
from unigrad_conformance.page.text import link, seconds, shorten, slug, visible
from unigrad_conformance.report import command, matrix
from unigrad_conformance.results import Result, Session

_spec = importlib.util.spec_from_file_location("made_up", Path(__file__).with_name("made_up.py"))
made_up = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(made_up)

VOID = {"br", "img", "input", "link", "meta", "rect", "line"}


class Tree(HTMLParser):
    """Elements of a page in order, each with its attributes, its text and those around it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.mistakes = [], [], []
        self.feed(text)
        self.close()
        self.mistakes += [f"<{element['tag']}> is not closed" for element in self.open]

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", "around": list(self.open), **dict(attributes)}
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append({"tag": tag, "text": "", "around": list(self.open), **dict(attributes)})

    def handle_endtag(self, tag):
        if not self.open or self.open[-1]["tag"] != tag:
            self.mistakes.append(
                f"</{tag}> at {self.getpos()} closes {self.open[-1]['tag'] if self.open else 'nothing'}"
            )
        else:
            self.open.pop()

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {key.replace("_", "-"): value for key, value in attributes.items()}
        return [e for e in self.elements if e["tag"] == tag and all(e.get(k) == v for k, v in wanted.items())]

    def by_id(self, name):
        (element,) = [element for element in self.elements if element.get("id") == name]
        return element

    def inside(self, outer, tag):
        return [element for element in self.elements if outer in element["around"] and element["tag"] == tag]


PAGES = {
    "green": made_up.green,
    "troubled": made_up.troubled,
    "wide": made_up.wide,
    "reference": lambda: [made_up.reference()],
}


@pytest.fixture(scope="module", params=PAGES)
def any_page(request):
    sessions = PAGES[request.param]()
    return sessions, html_page(sessions)


@pytest.fixture(scope="module")
def green():
    return Tree(html_page(made_up.green()))


@pytest.fixture(scope="module")
def troubled():
    return Tree(html_page(made_up.troubled()))


def test_it_is_well_formed(any_page):
    tree = Tree(any_page[1])
    assert tree.mistakes == []
    ids = [element["id"] for element in tree.elements if "id" in element]
    assert len(ids) == len(set(ids))
    for element in tree.elements:
        for key in ("href", "for", "aria-labelledby"):
            target = element.get(key, "").removeprefix("#")
            if key != "href" or element.get(key, "").startswith("#"):
                assert not target or target in ids, f"{key} of <{element['tag']}> leads nowhere: {target}"


def test_the_same_results_give_the_same_page(any_page):
    assert html_page(any_page[0]) == any_page[1]


def test_it_loads_nothing_and_its_policy_forbids_it(any_page):
    tree = Tree(any_page[1])
    (policy,) = tree.all("meta", http_equiv="Content-Security-Policy")
    parts = dict(part.strip().split(" ", 1) for part in policy["content"].split(";"))
    assert parts["default-src"] == "'none'"
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        (element,) = tree.all(tag)
        digest = base64.b64encode(hashlib.sha256(element["text"].encode()).digest()).decode()
        assert parts[name] == f"'sha256-{digest}'"
    assert set(parts) == {"default-src", "style-src", "script-src", "img-src", "base-uri", "form-action"}
    assert parts["img-src"] == "data:"
    for element in tree.elements:
        assert not {key for key in element if key in ("src", "style", "srcset", "data", "action") or key[:2] == "on"}
        if "href" in element and not element["href"].startswith("#"):
            outside = element["tag"] == "a" and element["rel"] == "noopener noreferrer"
            assert outside or (element["tag"], element["href"]) == ("link", "data:,")
    assert not re.search(r"@import|url\(", tree.all("style")[0]["text"])


def test_the_policy_stands_before_everything_that_it_rules():
    tree = Tree(html_page(made_up.green()))
    tags = [element["tag"] for element in tree.elements]
    assert tags[:5] == ["html", "head", "meta", "meta", "meta"]
    assert tree.elements[2]["charset"] == "utf-8"
    assert tree.elements[3]["http-equiv"] == "Content-Security-Policy"


def test_hostile_texts_stay_texts(troubled):
    assert len(troubled.all("script")) == 1
    assert not troubled.all("img")
    assert not [element for element in troubled.all("b") if element["text"] == "bold"]
    assert not troubled.all("i") or all(element["text"] == "refused 4/30" for element in troubled.all("i"))
    failures = troubled.by_id("failures")["text"]
    assert made_up.HOSTILE in failures
    assert "</pre><b>bold</b>" in failures
    assert r"\x1b[31mred \u202egnp \ud800 &amp;" in failures
    assert "</script><script>alert(1)</script>" in troubled.by_id("reasons")["text"]
    assert '"><b>framework' in troubled.by_id("environment")["text"]


def test_escaping_can_be_switched_off_and_is_then_noticed(monkeypatch):
    """The control of the test before."""
    real = page_module.Environment
    monkeypatch.setattr(page_module, "Environment", lambda **options: real(**{**options, "autoescape": False}))
    tree = Tree(html_page(made_up.troubled()))
    assert len(tree.all("script")) > 1
    assert tree.all("img")


def test_the_page_can_be_written_as_utf8(any_page):
    any_page[1].encode("utf-8")


@pytest.mark.parametrize(
    ("address", "is_link"),
    [
        ("https://github.com/a/b/issues/1", True),
        ("http://example.org/x?y=1&z=2", True),
        ("javascript:alert(1)", False),
        ("JavaScript:alert(1)", False),
        (" https://example.org", False),
        ("java\nscript:alert(1)", False),
        ("data:text/html,x", False),
        ("//example.org/x", False),
        ("https:", False),
        ("https://[::1", False),
        ("file:///etc/passwd", False),
        ("https://example.org/\u202egnp", False),
        ("no address", False),
        ("", False),
    ],
)
def test_what_is_a_link(address, is_link):
    assert link(address) == (address if is_link else "")


def test_a_link_that_is_none_is_shown_as_text(troubled):
    reasons = troubled.by_id("reasons")
    assert "javascript:alert(1)" in reasons["text"]
    assert [element["href"] for element in troubled.inside(reasons, "a") if element["href"][:1] != "#"] == []


def test_known_failures_have_their_link_and_refusals_their_reason(green):
    reasons = green.by_id("reasons")
    links = [element["href"] for element in green.inside(reasons, "a") if element["href"][:1] != "#"]
    assert links == [made_up.UPSTREAM]
    rows = [element["text"] for element in green.inside(reasons, "tr")]
    assert any("refused" in row and "twice: not declared" in row and "G17" in row for row in rows)
    assert any("no sample" in row and "no such tensor" in row and "G14" in row for row in rows)


def test_the_matrix_is_that_of_the_text(any_page):
    sessions, text = any_page
    tree = Tree(text)
    shown = {}
    for row in tree.inside(tree.by_id("matrix"), "tr"):
        if "data-clause" in row:
            cells = [element["text"].strip() for element in tree.elements if element["around"][-1:] == [row]]
            shown[row["data-clause"]] = cells[1:]
    assert shown == {name: cells for name, _, *cells in matrix(sessions).rows}
    heads = [element["text"] for element in tree.inside(tree.by_id("matrix"), "th") if element["scope"] == "col"]
    assert heads == ["Clause", *(session.backend for session in sessions)]


def test_every_cell_leads_to_every_test_of_it(any_page):
    sessions, text = any_page
    tree = Tree(text)
    shown = 0
    for session in sessions:
        for result in session.results:
            name, _, variant = result.id.partition("[")
            for clause in result.clauses:
                box = tree.by_id(f"{clause}.{slug(session.backend)}")
                assert visible(name.rpartition("::")[2]) in box["text"]
                assert visible(variant.removesuffix("]")) in box["text"]
                assert result.outcome in box["text"]
                shown += 1
    assert shown == sum(len(result.clauses) for session in sessions for result in session.results)


def test_tests_of_one_function_and_one_outcome_stand_together(green):
    box = green.by_id("C1.numpy")
    rows = [" ".join(element["text"].split()) for element in green.inside(box, "tr")][1:]
    assert rows == ["passed test_a.py::test_many 6 variants 0 1 2 3 4 5 case 88 6 60 ms"]


def test_each_failure_has_the_command_that_repeats_it(troubled):
    sessions = made_up.troubled()
    shown = [
        element["text"].removesuffix("Copy")
        for element in troubled.inside(troubled.by_id("failures"), "div")
        if element.get("class") == "command"
    ]
    for session in sessions:
        for result in session.bad:
            if result.ran:
                assert visible(command(session, result)) in shown
    died = next(session for session in sessions if session.backend == "died")
    again = next(text for text in shown if "a folder" in text and "-k" not in text)
    assert shlex.split(again) == ["unigrad", "check", died.target]


def test_tests_that_did_not_run_are_one_entry(troubled):
    entries = [
        element["text"]
        for element in troubled.all("details", data_backend="died")
        if "data-entry" in element and element["class"] == "entry"
    ]
    assert len(entries) == 3
    assert "5 tests were not run" in entries[1]
    assert all(f"test_a.py::test_r[{number}]" in entries[1] for number in range(5))
    assert "SIGSEGV" in entries[2]
    assert "Segmentation fault" in entries[0]


def test_a_backend_that_does_not_load_says_why(troubled):
    assert "ImportError: libx.so.1" in troubled.by_id("failures")["text"]
    row = next(row["text"] for row in troubled.inside(troubled.by_id("backends"), "tr") if "absent" in row["text"])
    assert "unavailable" in row


def test_many_and_long_tracebacks_are_cut_and_it_is_said():
    results = [
        Result(f"test_a.py::test[{n}]", "failed", ("G1",), reason="r", details=f"<{n}>" + "x" * 50_000)
        for n in range(120)
    ]
    failures, _ = failures_of(made_up.session("many", results), "failure.many")
    assert len(failures) == 120
    assert all(len(failure.details) < 21_000 for failure in failures)
    assert "characters left out" in failures[99].details
    assert failures[99].details.startswith("<99>")
    assert failures[100].details.startswith("The page keeps 100 tracebacks")
    assert failures[119].command.endswith("'test_a.py::test[119]'")


def measured(ratio=0.5, label=""):
    size = ratio if math.isfinite(ratio) else 1.0
    return Measured("t", "o", None, None, Comparison(label, size, 1.0 if math.isfinite(ratio) else 0.0))


@pytest.mark.parametrize(
    ("ratio", "label", "between"),
    [
        pytest.param(1e-9, "", (None, "10⁻⁵"), id="far-below"),
        pytest.param(2e-5, "", ("10⁻⁵", "10⁻⁴"), id="low"),
        pytest.param(0.05, "", ("10⁻²", "10⁻¹"), id="middle"),
        pytest.param(0.999, "", ("10⁻¹", "1"), id="just-below-the-bound"),
        pytest.param(1.0, "", ("10⁻¹", "1"), id="on-the-bound"),
        pytest.param(1.001, "value", ("1", "10"), id="just-beyond"),
        pytest.param(11.0, "value", ("10", "∞"), id="far-beyond"),
        pytest.param(math.inf, "value", ("∞", None), id="none-allowed"),
        pytest.param(0.0, "shape", ("∞", None), id="shape"),
        pytest.param(0.0, "missing", ("∞", None), id="missing"),
    ],
)
def test_x1_where_a_difference_stands_in_the_distribution(ratio, label, between):
    (bar,) = bars([measured(ratio, label)])
    places = {tick.label: tick.left for tick in ticks()}
    low, high = places.get(between[0], 0.0), places.get(between[1], 100.0)
    assert low - 0.01 <= bar.left
    assert bar.left + bar.width <= high + 0.01
    assert bar.beyond == (low >= places["1"])


def test_x1_equal_observations_are_no_bar_and_the_highest_fills_the_plot():
    found = bars([measured(0.0)] * 7 + [measured(0.5)] * 4 + [measured(0.05)])
    assert [bar.count for bar in found] == [1, 4]
    assert found[0].height == pytest.approx(found[1].height / 4)


def test_x1_the_agreement_of_the_page_is_that_of_the_text(troubled):
    (failing,) = [one for one in agreements(made_up.troubled()) if one.backend == "failing"]
    article = troubled.by_id("agreement.failing")
    tally = {
        element["text"].strip().split("\n")[0]
        for element in troubled.inside(article, "div")
        if element["around"][-1]["tag"] == "dl"
    }
    assert "observations4" in tally
    assert f"beyond it{len(failing.faults)}" in tally
    assert "40" in article["text"]
    assert "nan" in article["text"]
    assert "four terms are summed" in article["text"]
    (chart,) = troubled.inside(article, "svg")
    assert "more than 10 times the bound" in chart["aria-label"]


def test_x2_choices_that_differ_are_shown_with_both_values(green):
    article = green.by_id("agreement.other")["text"]
    assert "Choices that differ" in article
    assert "[0.5]" in article
    assert "[1.]" in article
    assert green.by_id("main")["text"].count("Beyond the bound") == 0


def test_x1_the_largest_differences_are_named(green):
    (largest,) = [element for element in green.all("details") if "largest" in element.get("class", "")]
    assert "test_a.py::test_plain" in largest["text"]
    assert "near" in largest["text"]
    assert "0.1" in largest["text"]


def test_without_the_reference_it_is_said_that_nothing_was_compared():
    assert "numpy was not checked along" in Tree(html_page([made_up.green()[1]])).by_id("agreement")["text"]
    assert "only numpy was checked" in Tree(html_page([made_up.reference()])).by_id("agreement")["text"]


def test_the_environment_of_each_backend(green):
    text = green.by_id("environment")["text"]
    for wanted in ("other-framework 1.2.3", "3.11.7", "Linux-6.1-x86_64", "float32, float64", "captures", "undetected"):
        assert wanted in text


@pytest.mark.parametrize(
    ("sessions", "verdict"),
    [
        pytest.param(made_up.green(), "Kept", id="kept"),
        pytest.param(made_up.troubled(), "Failed", id="failed"),
        pytest.param([], "Not checked", id="nothing"),
        pytest.param([Session("other", selection="absent")], "Not checked", id="no-test"),
        pytest.param([made_up.session("a", [], status="interrupted", message="stopped")], "Interrupted", id="stopped"),
    ],
)
def test_the_verdict_stands_on_top(sessions, verdict):
    tree = Tree(html_page(sessions))
    assert tree.mistakes == []
    assert [element["text"] for element in tree.all("h1")] == [verdict]
    assert tree.all("title")[0]["text"].startswith(f"{verdict}: ")


def test_two_backends_of_one_name_are_two_columns():
    tree = Tree(html_page([made_up.reference(), made_up.session("a b", []), made_up.session("a b", [])]))
    heads = tree.inside(tree.by_id("matrix"), "th")
    assert [element.get("data-backend") for element in heads][1:4] == ["numpy", "a~20b", "a~20b.2"]


@pytest.mark.parametrize(
    ("duration", "text"), [(0.0, "0 ms"), (0.0123, "12 ms"), (0.9996, "1.0 s"), (59.94, "59.9 s"), (150.0, "2.5 min")]
)
def test_times_have_the_unit_that_suits_them(duration, text):
    assert seconds(duration) == text


def test_what_is_cut_says_how_much():
    assert shorten("x" * 10, 10) == "x" * 10
    assert shorten("a" * 10 + "b" * 10, 10) == "aaaaa\n[... 10 characters left out ...]\nbbbbb"


@pytest.fixture
def ready(fake):
    fake.backend()
    fake.suite("def test_a(): pass\ndef test_b(): assert 1 == 2\n")
    return fake


def test_check_and_report_write_the_same_page(ready):
    checked = ready.check("fake", "--html", "check.html")
    assert checked.returncode == 1
    reported = ready.run("report", str(ready.results), "--html", "report.html")
    assert reported.returncode == 0
    text = (ready.cwd / "check.html").read_text(encoding="utf-8")
    assert text == (ready.cwd / "report.html").read_text(encoding="utf-8")
    tree = Tree(text)
    assert tree.mistakes == []
    assert "test_fake.py::test_b" in tree.by_id("failures")["text"]
    assert "unigrad check fake -k test_fake.py::test_b" in tree.by_id("failures")["text"]


@pytest.mark.parametrize("arguments", [("check", "fake"), ("report", "results")])
def test_a_page_that_cannot_be_written_is_told_before_anything_runs(ready, arguments):
    if arguments[0] == "report":
        ready.check("fake")
        arguments = ("report", str(ready.results))
    process = ready.run(*arguments, "--html", "absent/x.html")
    assert process.returncode == 2
    assert "cannot write the file absent/x.html" in process.stderr
    assert "Traceback" not in process.stderr
    assert process.stdout == ""


def test_without_jinja2_the_page_is_refused_and_the_rest_works(ready):
    ready.check("fake")
    program = (
        "import sys; sys.modules['jinja2'] = None\n"
        "from unigrad_conformance import cli\nsys.exit(cli.main(sys.argv[1:]))"
    )

    def blocked(*arguments):
        command = [sys.executable, "-c", program, "report", str(ready.results), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ready.cwd, timeout=60)

    assert blocked().returncode == 0
    refused = blocked("--html", "x.html")
    assert refused.returncode == 2
    assert "this needs jinja2, which is not installed. Install it with: pip install 'unigrad[check]'" in refused.stderr
    assert not (ready.cwd / "x.html").exists()

"""docs/cases.md lists every real fault once, with the tests that express it, and says why where there is none."""

import importlib.util
import re
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("cases", Path(__file__).with_name("cases.py"))
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)


def rows():
    """Cells of each row by number."""
    found = [cases.ROW.fullmatch(line) for line in cases.CASES.read_text().splitlines()]
    return [(int(row[1]), row[3].strip()) for row in found if row]


def unexpressed():
    """Numbers that the second part of the document explains, each the first thing in its item."""
    _, _, rest = cases.CASES.read_text().partition("## What no test expresses")
    return [int(n) for item in re.findall(r"^- \*\*([\d, ]+)\*\*", rest, flags=re.MULTILINE) for n in item.split(",")]


def test_lists_of_tests_are_fresh():
    text = cases.CASES.read_text()
    assert cases.render(text) == text, "run: python conformance/selftests/cases.py --write"


def test_a_number_stands_once_and_in_order():
    numbers = [number for number, _ in rows()]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 102


def test_every_mark_is_of_a_fault_in_the_document():
    assert set(cases.tests_by_case()) <= {number for number, _ in rows()}


def test_what_has_no_test_has_a_reason():
    assert {number for number, tests in rows() if tests == cases.NONE} <= set(unexpressed())


def test_the_reasons_are_of_faults_in_the_document():
    assert set(unexpressed()) <= {number for number, _ in rows()}


@pytest.mark.parametrize("change", ["a test more", "a test less"])
def test_control_a_stale_list_is_noticed(change):
    text = cases.CASES.read_text()
    name = "test_each_new_collector_starts_from_nothing"
    assert name in text
    stale = text.replace(name, f"{name}, test_that_is_not_there" if change == "a test more" else "")
    assert cases.render(stale) == text

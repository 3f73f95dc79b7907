"""docs/contract.md states every clause once, and lists the tests that are marked with it."""

import importlib.util
import re
from pathlib import Path

import pytest
from unigrad_conformance.clauses import CLAUSES

_spec = importlib.util.spec_from_file_location("contract", Path(__file__).with_name("contract.py"))
contract = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(contract)


def test_every_clause_is_stated_once_and_in_order():
    stated = re.findall(r"^### ([A-Z]\d+) ", contract.CONTRACT.read_text(), flags=re.MULTILINE)
    assert stated == list(CLAUSES)


def test_lists_of_tests_are_fresh():
    text = contract.CONTRACT.read_text()
    assert contract.render(text) == text, "run: python conformance/selftests/contract.py --write"


@pytest.mark.parametrize("name", [name for name, clause in CLAUSES.items() if clause.checked_by == "suite"])
def test_every_clause_of_the_suite_has_a_test(name):
    assert contract.tests_by_clause()[name]

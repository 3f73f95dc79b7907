"""The mutants: a complete registry, patches that find their targets, named tests that are green without them, kills."""

import importlib
import re
import subprocess
import sys

import pytest
from rich.console import Console
from unigrad_conformance import mutants, mutation
from unigrad_conformance.clauses import CLAUSES
from unigrad_conformance.mutation import Edit, Mutant, MutationError
from unigrad_conformance.results import Result, Session
from unigrad_conformance.runner import Target, check

from unigrad.errors import ArgumentError

KNOWN = mutation.load()


def mutant(*edits, clause="G1", test="test_x.py::test_x"):
    return Mutant("made-here", clause, "Something is wrong.", test, edits)


def test_there_is_a_mutant_or_a_reason_for_every_clause():
    families = {name for name in CLAUSES if name[0] in mutation.FAMILIES}
    broken = {mutant.clause for mutant in KNOWN.values()}
    reasons = mutation.exempt()
    assert len(KNOWN) >= 30
    assert broken | set(reasons) == families
    assert not broken & set(reasons)
    assert all(reason.strip() and "\n" not in reason for reason in reasons.values())


def test_a_mutant_says_what_it_breaks_and_names_its_test():
    for mutant in KNOWN.values():
        assert re.fullmatch(r"[^\n]+\.", mutant.breaks), mutant.name
        assert re.match(r"test_\w+\.py::test_", mutant.test), mutant.name
        assert all(edit.old != edit.new for edit in mutant.edits), mutant.name


def test_no_two_mutants_make_the_same_change_for_one_clause():
    assert len({(mutant.clause, mutant.edits) for mutant in KNOWN.values()}) == len(KNOWN)


def test_every_mutant_can_be_put_in():
    """In one process, as each exchanges code that a later one may look at, whatever the file says by then."""
    code = """
from unigrad.plugins import get_backend
from unigrad_conformance import mutation
package = get_backend(mutation.BACKEND).spec.package
for mutant in mutation.load().values():
    before = {target: mutation.function_of(target, package).__code__ for target in {edit.target for edit in mutant.edits}}
    mutation.apply(mutant, package)
    for target, code in before.items():
        function = mutation.function_of(target, package)
        assert function.__code__ is not code, (mutant.name, target)
        function.__code__ = code
print("all")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "all\n", done.stderr


VICTIM = """
import contextlib

limit = 3

def above(x):
    if x > limit:
        return True
    return False

@contextlib.contextmanager
def doubled(items):
    items += items
    yield

class Box:
    @property
    def size(self):
        return 1

    @staticmethod
    def name():
        return "box"

def closing_over(x):
    def inner():
        return x
    return inner

inner = closing_over(1)
"""


@pytest.fixture
def victim(tmp_path, monkeypatch):
    """Return a module of this test's own, which is no module any more afterwards."""
    (tmp_path / "victim_of_mutants").mkdir()
    (tmp_path / "victim_of_mutants/__init__.py").write_text("")
    (tmp_path / "victim_of_mutants/code.py").write_text(VICTIM)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("victim_of_mutants.code")
    for name in ("victim_of_mutants.code", "victim_of_mutants"):
        sys.modules.pop(name)


def put_in(*edits):
    mutation.apply(mutant(*edits), "victim_of_mutants")


def test_a_change_is_seen_through_every_reference(victim):
    above = victim.above
    put_in(Edit(".code:above", "x > limit", "x < limit"))
    assert above(1)
    assert not above(5)


def test_decorated_functions_and_members_can_be_changed(victim):
    put_in(
        Edit(".code:doubled", "items += items", "items += items + items"),
        Edit(".code:Box.size", "return 1", "return 2"),
        Edit("victim_of_mutants.code:Box.name", "box", "other"),
    )
    items = [0]
    with victim.doubled(items):
        assert items == [0, 0, 0]
    assert victim.Box().size == 2
    assert victim.Box.name() == "other"


def test_several_edits_of_one_function_are_made_together(victim):
    put_in(Edit(".code:above", "x > limit", "x < limit"), Edit(".code:above", "return False", "return None"))
    assert victim.above(5) is None


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(Edit(".nowhere:above", "a", "b"), "does not exist", id="module"),
        pytest.param(Edit(".code:gone", "a", "b"), "does not exist", id="function"),
        pytest.param(Edit(".code:Box.gone", "a", "b"), "does not exist", id="method"),
        pytest.param(Edit(".code:limit", "3", "4"), "not a function", id="no-function"),
        pytest.param(Edit(".code:above", "no such text", "b"), "holds 0 times", id="text"),
        pytest.param(Edit(".code:above", "return", "b"), "holds 2 times", id="text-twice"),
        pytest.param(Edit(".code:above", "", "b"), "not once", id="no-text"),
        pytest.param(Edit(".code:above", "x > limit:", "x"), "no Python", id="syntax"),
        pytest.param(Edit(".code:inner", "return x", "return 2"), "closes over", id="closure"),
    ],
)
@pytest.mark.usefixtures("victim")
def test_a_patch_that_does_not_fit_is_an_error(edit, message):
    with pytest.raises(MutationError, match=message):
        put_in(edit)


def test_nothing_is_put_in_if_one_edit_of_several_does_not_fit(victim):
    with pytest.raises(MutationError):
        put_in(Edit(".code:above", "x > limit", "x < limit"), Edit(".code:gone", "a", "b"))
    assert victim.above(5)


def test_further_lines_stand_as_far_in_as_the_first():
    source = "def f(x):\n    if x:\n        return 1\n    return 2\n"
    edited = mutation.replaced(source, Edit("m:f", "return 1", "x += 1\nreturn x"))
    assert edited == "def f(x):\n    if x:\n        x += 1\n        return x\n    return 2\n"


def tried(monkeypatch, *results, status="complete", clause="G1"):
    session = Session("numpy", status=status, message="why", selection="it", results=results)
    monkeypatch.setattr(mutants, "check", lambda *arguments, **named: [session])
    return mutants.try_mutant(mutant(clause=clause))


def test_a_failed_test_of_the_clause_kills(monkeypatch):
    verdict = tried(monkeypatch, Result("a", "passed", ("G1",)), Result("b", "failed", ("G2", "G1"), reason="assert 0"))
    assert (verdict.outcome, verdict.test) == ("killed", "b")


@pytest.mark.parametrize("outcome", ["passed", "refused", "known failure", "no sample"])
def test_anything_else_does_not_kill(monkeypatch, outcome):
    assert tried(monkeypatch, Result("a", outcome, ("G1",))).outcome == "survived"


@pytest.mark.parametrize(
    ("results", "status"),
    [
        pytest.param([Result("a", "failed", ("G2",), reason="assert 0")], "complete", id="test-of-another-clause"),
        pytest.param([Result("a", "failed", ("G1",), reason="NameError: x")], "complete", id="fault-of-the-patch"),
        pytest.param([Result("a", "failed", ("G1",), reason="assert 0")], "died", id="dead-process"),
        pytest.param([], "usage", id="refused-patch"),
    ],
)
def test_what_is_no_wrong_outcome_of_the_clause_does_not_count(monkeypatch, results, status):
    verdict = tried(monkeypatch, *results, status=status)
    assert verdict.outcome == "error"
    assert verdict.reason


def test_tests_that_never_ran_do_not_kill(monkeypatch):
    assert tried(monkeypatch, Result("a", "failed", ("G1",), ran=False)).outcome == "survived"
    assert tried(monkeypatch).outcome == "survived"


def test_a_survivor_is_listed_and_makes_the_exit_code_one(monkeypatch, capsys):
    outcomes = {"write-adds": "survived", "add-writes": "killed"}
    monkeypatch.setattr(
        mutants, "try_mutant", lambda mutant: mutants.Verdict(mutant, outcomes[mutant.name], reason="3 tests passed")
    )
    assert mutants.run_mutants(Console(width=200), 1, only=["add-writes"]) == 0
    assert mutants.run_mutants(Console(width=200), 2, only=list(outcomes)) == 1
    printed = capsys.readouterr().out
    assert "1 of 2 mutants killed" in printed
    assert f"survived: write-adds (G1): {KNOWN['write-adds'].breaks}" in printed


def test_an_unknown_name_is_an_error():
    with pytest.raises(ArgumentError, match="no-such-mutant"):
        mutants.run_mutants(Console(), 1, only=["no-such-mutant"])


def test_the_named_tests_are_green_without_a_mutant(tmp_path):
    names = {re.split(r"::|\[", mutant.test)[1] for mutant in KNOWN.values()}
    (session,) = check([Target(mutation.BACKEND)], tmp_path, pattern=" or ".join(sorted(names)))
    results = {result.id: result for result in session.results}
    assert session.status == "complete", session.message
    for known in KNOWN.values():
        assert known.test in results, (known.name, known.test)
        assert results[known.test].outcome in ("passed", "refused"), (known.name, results[known.test].reason)
        assert known.clause in results[known.test].clauses, known.name


@pytest.mark.parametrize("name", ["gradient-scaled", "statistics-twice", "warning-every-step"])
def test_a_sample_is_killed_by_the_test_it_names(name):
    verdict = mutants.try_mutant(KNOWN[name])
    assert (verdict.outcome, verdict.test) == ("killed", KNOWN[name].test), verdict.reason


def test_an_unknown_mutant_is_refused_by_the_process(tmp_path):
    arguments = ("-p", "unigrad_conformance.mutants_plugin", "--unigrad-mutant=no-such-mutant")
    (session,) = check([Target(mutation.BACKEND, arguments=arguments)], tmp_path, select="G1")
    assert session.status == "usage"
    assert "no-such-mutant" in session.message

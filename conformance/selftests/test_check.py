"""The whole suite on the backends of this repository, and what each of them refuses (clauses A6, X1)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import unigrad_conformance

from unigrad import Capability, Guarantee
from unigrad.plugins import explain

ROOT = Path(__file__).resolve().parents[2]

# A longer list is a step back: it fails here. A shorter one is progress, and is written here with it.
REFUSED = {
    "numpy": {
        Capability.COMPILED_STEP,
        Capability.MIXED_PRECISION,
        Capability.SECOND_ORDER,
        Capability.SECOND_ORDER_CHECKPOINT,
    },
    "torch": {Capability.COMPILED_STEP},
    "tensorflow": {Capability.MIXED_PRECISION},
    "paddle": {
        Capability.COMPILED_STEP,
        Capability.MIXED_PRECISION,
        Capability.OWN_GENERATORS,
        Capability.SECOND_ORDER_CHECKPOINT,
    },
    "mindspore": {
        Capability.COMPILED_STEP,
        Capability.LAZY_LAYERS,
        Capability.MIXED_PRECISION,
        Capability.OWN_GENERATORS,
        Capability.SECOND_ORDER_CHECKPOINT,
    },
}
NOT_KEPT = {
    "numpy": {
        Guarantee.STALE_NATIVE: "StaleGraphError",
        Guarantee.STALE_HIDDEN: "undetected",
        Guarantee.SHARED_TRUNK: "GraphReleasedError",
    },
    "torch": {
        Guarantee.STALE_NATIVE: "StaleGraphError",
        Guarantee.STALE_HIDDEN: "undetected",
        Guarantee.SHARED_TRUNK: "GraphReleasedError",
    },
    "tensorflow": {
        Guarantee.STALE_HIDDEN: "undetected",
        Guarantee.SHARED_TRUNK: "GraphReleasedError",
        Guarantee.INDEPENDENT_RELEASE: "GraphReleasedError",
        Guarantee.AMBIENT_GRAPH: "NoGraphError",
        Guarantee.BITEXACT_SHARING: "undetected",
    },
    "paddle": {
        Guarantee.STALE_NATIVE: "undetected",
        Guarantee.STALE_HIDDEN: "undetected",
        Guarantee.SHARED_TRUNK: "GraphReleasedError",
        Guarantee.BITEXACT_SHARING: "undetected",
        Guarantee.THREADS: "UnsupportedError",
    },
    "mindspore": {
        Guarantee.STALE_NATIVE: "undetected",
        Guarantee.STALE_HIDDEN: "undetected",
        Guarantee.SHARED_TRUNK: "GraphReleasedError",
        Guarantee.AMBIENT_GRAPH: "NoGraphError",
        Guarantee.THREADS: "UnsupportedError",
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a6_a_backend_refuses_exactly_what_is_written_here(name):
    row = explain(name)
    assert set(Capability) - row.capabilities == REFUSED[name]
    assert {g: what for g, what in row.guarantees.items() if what != "kept"} == NOT_KEPT[name]
    assert set(row.guarantees) == set(Guarantee), "a guarantee is not declared at all"


def rows() -> dict[tuple[str, str], list[str]]:
    """Rows of the tables of docs/refusals.md, each once: backend and name of what is refused -> the other cells."""
    text = (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8")
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) >= 4 and re.fullmatch(r"`[A-Z_]+`", cells[1]):
            key = (cells[0], cells[1].strip("`"))
            assert key not in found, f"{key} stands twice"
            found[key] = cells[2:]
    return found


def test_a6_each_refusal_has_its_evidence_in_the_documents_and_no_other_stands_there():
    """The last cell names the tests of the suite that show it."""
    told = rows()
    operations = {(name, what.name): "" for name, refused in REFUSED.items() for what in refused}
    guarantees = {(name, what.name): happens for name, kept in NOT_KEPT.items() for what, happens in kept.items()}
    assert set(told) == set(operations) | set(guarantees)
    suite = Path(unigrad_conformance.__file__).parent / "suite"
    for key, cells in told.items():
        if key in guarantees:
            assert cells[0].strip("`") == guarantees[key], key
        files = re.findall(r"`(test_\w+\.py)`", cells[-1])
        assert files, f"{key}: no test is named"
        for file in files:
            assert key[1] in (suite / file).read_text(encoding="utf-8"), f"{key}: {file} does not name it"


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """One run of ``unigrad check`` over the backends of this repository: its process, and the folder of its results."""
    folder = tmp_path_factory.mktemp("checked")
    command = [
        sys.executable,
        "-m",
        "unigrad_conformance.cli",
        "check",
        *REFUSED,
        "--results",
        str(folder / "results"),
    ]
    process = subprocess.run(
        [*command, "--json", str(folder / "all.json")], cwd=folder, capture_output=True, text=True, timeout=2400
    )
    return process, folder


def test_every_clause_is_kept_by_the_backends_of_this_repository(checked):
    process, folder = checked
    assert process.returncode == 0, process.stdout[-20000:] + process.stderr[-2000:]
    sessions = json.loads((folder / "all.json").read_text())["sessions"]
    for session in sessions:
        outcomes = [result["outcome"] for result in session["results"]]
        assert len(outcomes) > 500, "most of the suite did not run"
        assert "failed" not in outcomes
    assert len(sessions) == len(REFUSED)


def test_the_matrix_in_readme_is_the_generated_one(checked):
    """Renew it with ``unigrad check numpy torch tensorflow paddle mindspore --results DIR && python .ci/matrix.py DIR``."""
    script = [sys.executable, ROOT / ".ci" / "matrix.py", "--check", checked[1] / "results"]
    process = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stdout + process.stderr

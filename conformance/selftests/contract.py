"""Keep docs/contract.md true: each clause with the tests that are marked with it.

``python conformance/selftests/contract.py --write`` renews the generated lines; without the flag it says what is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from unigrad_conformance.clauses import CLAUSES

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "contract.md"
SUITE = ROOT / "conformance" / "unigrad_conformance" / "suite"
SELFTESTS = ROOT / "conformance" / "selftests"


def _marked(node: ast.AST) -> list[str]:
    """Names in ``pytest.mark.clause("G1", ...)`` anywhere below a node."""
    found = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "clause":
            found += [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    return found


def tests_by_clause() -> dict[str, list[str]]:
    """Return test functions ``file::name`` by clause, from the marks in the suite and what selftests name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(SUITE.glob("test_*.py")):
        tree = ast.parse(path.read_text())
        shared = [
            name
            for node in tree.body
            if isinstance(node, ast.Assign)
            and any(getattr(target, "id", "") == "pytestmark" for target in node.targets)
            for name in _marked(node)
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                own = [name for decorator in node.decorator_list for name in _marked(decorator)]
                for clause in dict.fromkeys([*shared, *own]):
                    found[clause].append(f"{path.name}::{node.name}")
    for path in sorted(SELFTESTS.rglob("test_*.py")):
        for clause in _selftested(ast.parse(path.read_text())):
            found[clause].append(f"selftests/{path.relative_to(SELFTESTS)}")
    for clause in CLAUSES.values():
        if clause.checked_by.startswith("unigrad "):
            found[clause.name].append(clause.checked_by)
    return found


def _selftested(tree: ast.Module) -> list[str]:
    """Clauses that a file of selftests names: in its first line, in names as ``test_a2_...``, or as ``Clause A2``."""
    found = re.findall(r"\b([ABGRCMYDX]\d+)\b", (ast.get_docstring(tree) or "").partition("\n")[0])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            prefix = re.match(r"test_((?:[abgrcmydx]\d+_)+)", node.name)
            found += prefix[1].upper().split("_")[:-1] if prefix else []
            found += re.findall(r"\b[Cc]lauses? ([ABGRCMYDX]\d+)\b", ast.get_docstring(node) or "")
    return list(dict.fromkeys(found))


def render(text: str) -> str:
    """Return the contract with each line 'Tests:' renewed."""
    tests = tests_by_clause()
    lines = []
    clause = ""
    for line in text.splitlines():
        heading = re.match(r"### ([A-Z]\d+) ", line)
        clause = heading[1] if heading else clause
        if line.startswith("Tests:"):
            by_file: dict[str, list[str]] = defaultdict(list)
            for item in tests.get(clause, []):
                name, _, test = item.partition("::")
                by_file[name].append(test)
            listed = "; ".join(
                f"`{name}`" + (f" ({', '.join(found)})" if any(found) else "") for name, found in by_file.items()
            )
            line = f"Tests: {listed or 'none yet'}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Renew the contract, or say that it is stale."""
    text = CONTRACT.read_text()
    fresh = render(text)
    if "--write" in sys.argv:
        CONTRACT.write_text(fresh)
        return 0
    if fresh != text:
        print("docs/contract.md is stale; run: python conformance/selftests/contract.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

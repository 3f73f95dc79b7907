"""Keep docs/cases.md true: each fault by number with the tests that express it.

``python conformance/selftests/cases.py --write`` renews the last cell of each row; without the flag it says what is stale.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = ROOT / "docs" / "cases.md"
SUITE = ROOT / "conformance" / "unigrad_conformance" / "suite"
SELFTESTS = ROOT / "conformance" / "selftests"
ROW = re.compile(r"\| (\d+) \|(.*)\|(.*)\|")
NONE = "none: see below"


def _numbers(node: ast.AST) -> list[int]:
    """Numbers in ``pytest.mark.case(14, ...)`` anywhere below a node."""
    found: list[int] = []
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "case":
            found += [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    return found


def tests_by_case() -> dict[int, list[str]]:
    """Return test functions ``file::name`` by number, from the marks in the suite and the names in selftests."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(SUITE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in dict.fromkeys(n for decorator in node.decorator_list for n in _numbers(decorator)):
                    found[number].append(f"{path.name}::{node.name}")
    for path in sorted(SELFTESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            named = re.match(r"test_case_(\d+)_", node.name) if isinstance(node, ast.FunctionDef) else None
            if named:
                found[int(named[1])].append(f"selftests/{path.relative_to(SELFTESTS)}::{named.string}")
    return found


def render(text: str) -> str:
    """Return the document with the last cell of each row renewed."""
    tests = tests_by_case()
    lines = []
    for line in text.splitlines():
        row = ROW.fullmatch(line)
        if row:
            by_file: dict[str, list[str]] = defaultdict(list)
            for item in tests.get(int(row[1]), []):
                file, _, name = item.partition("::")
                by_file[file].append(name)
            listed = "; ".join(f"`{file}`: {', '.join(names)}" for file, names in by_file.items())
            line = f"| {row[1]} |{row[2]}| {listed or NONE} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Renew the document, or say that it is stale."""
    text = CASES.read_text()
    fresh = render(text)
    if "--write" in sys.argv:
        CASES.write_text(fresh)
        return 0
    if fresh != text:
        print("docs/cases.md is stale; run: python conformance/selftests/cases.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

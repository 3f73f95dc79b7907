"""Put the matrix of clauses by backends, as generated from a folder of results, into README.md.

Usage: ``python .ci/matrix.py [--check] RESULTS``; with ``--check`` nothing is written, and a difference exits with 1.
"""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"


def with_matrix(text: str, matrix: str) -> str:
    """Return the text with what stands between the two markers replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{README.name} has no {BEGIN} ... {END}")
    return f"{before}{begin}\n\n{matrix.strip()}\n\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Run the command; return its exit status."""
    check = "--check" in arguments
    (results,) = [argument for argument in arguments if argument != "--check"]
    command = [sys.executable, "-m", "unigrad_conformance.cli", "report", "--markdown", results]
    report = subprocess.run(command, capture_output=True, text=True)
    # The report of a check that failed is a report, too.
    if report.returncode not in (0, 1) or not report.stdout:
        sys.exit(report.stderr or f"the report ended with {report.returncode}")
    old = README.read_text(encoding="utf-8")
    new = with_matrix(old, report.stdout)
    if not check:
        README.write_text(new, encoding="utf-8")
        return 0
    sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "README.md", "generated"))
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Put the figures of ``unigrad bench NAME --json FILE`` into docs/benchmark.md, one table for each backend.

Usage: ``python .ci/figures.py FILE [FILE ...]``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmark.md"
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
COLUMNS = ("what", "kind", "median", "quartiles", "at most", "")


def table(name: str, found: dict[str, Any]) -> str:
    """Return the table of one backend."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS)]
    for one in found["figures"]:
        low, high = one["low"], one["high"]
        rows.append(
            (
                one["what"],
                one["kind"],
                f"{one['median']:.3f}",
                f"{low:.3f} .. {high:.3f}" if low != high else "",
                "" if one["bound"] is None else f"{one['bound']:.2f}",
                {True: "reached", False: "missed", None: ""}[one["ok"]],
            )
        )
    lines = [f"## {name} {found['version']}", "", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


def main(files: list[str]) -> None:
    """Write the page."""
    tables = []
    for file in files:
        for name, found in json.loads(Path(file).read_text(encoding="utf-8"))["backends"].items():
            tables.append(table(name, found))
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not tables or not begin or not end:
        sys.exit(f"no figures, or {PAGE.name} has no {BEGIN} ... {END}")
    text = "\n\n".join(tables)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

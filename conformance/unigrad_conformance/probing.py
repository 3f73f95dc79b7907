"""Describe backends for a table, even those whose declaration ends or hangs the process that reads it (clause A3)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from unigrad.plugins import Row, explain

__all__ = ["explained"]

_LIMIT_S = 60.0
_READ = """
import sys
from unigrad.plugins import explain
for name in sys.argv[1:]:
    print(name, file=sys.stderr, flush=True)
    explain(name)
print("read", file=sys.stderr)
"""


def explained(names: Sequence[str]) -> list[Row]:
    """Return what ``unigrad.plugins.explain`` says of each, after another process has tried it."""
    deadly: dict[str, str] = {}
    left = list(names)
    while left:
        name, cause = _first_deadly(left)
        if name is None:
            break
        deadly[name] = cause
        left = left[left.index(name) + 1 :]
    return [_row(name, deadly.get(name)) for name in names]


def _row(name: str, cause: str | None) -> Row:
    if cause is None:
        return explain(name)
    message = (
        f"backend {name!r} is broken: a process that reads its declaration {cause}. Reinstall, upgrade or uninstall it"
    )
    return Row(name, "-", None, None, "broken", message)


def _first_deadly(names: Sequence[str]) -> tuple[str | None, str]:
    """Read declarations in another process; return the one that ended it, and how, or None."""
    command = [sys.executable, "-P", "-c", _READ, *names]
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
        told, how = process.stderr, f"ends with {process.returncode}"
    except subprocess.TimeoutExpired as error:
        told, how = error.stderr or b"", f"has not ended after {_LIMIT_S:g} s"
    lines = told.decode("utf-8", errors="replace").splitlines()
    begun = [line for line in lines if line in names]
    return (None, "") if not begun or lines[-1] == "read" else (begun[-1], how)

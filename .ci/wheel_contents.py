"""Check that a wheel of unigrad holds the packages of the checkout, all of them and nothing else.

Usage: ``python .ci/wheel_contents.py WHEEL``; prints each difference and exits with 1 if there is one.
"""

from __future__ import annotations

import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
UNWANTED = {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"}


def expected() -> set[str]:
    """Return the paths, inside the wheel, of every file of the listed packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = set()
    for listed in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        folder = ROOT / listed
        for path in folder.rglob("*"):
            if path.is_file() and not UNWANTED.intersection(path.parts) and path.suffix != ".pyc":
                found.add(path.relative_to(folder.parent).as_posix())
    return found


def differences(wheel: Path) -> list[str]:
    """Return one sentence for each file that the wheel lacks or should not hold."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in names if PurePosixPath(name).parts[0].endswith(".dist-info")}
    wanted = expected()
    faults = [f"missing from the wheel: {name}" for name in sorted(wanted - names)]
    faults += [f"not wanted in the wheel: {name}" for name in sorted(names - metadata - wanted)]
    if not any(name.endswith("/licenses/LICENSE") for name in metadata):
        faults.append("missing from the wheel: the licence")
    tops = {PurePosixPath(name).parts[0] for name in wanted}
    faults += [f"{top} has no py.typed" for top in sorted(tops) if f"{top}/py.typed" not in names]
    return faults


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = differences(Path(sys.argv[1]))
    print("\n".join(problems) or f"{Path(sys.argv[1]).name}: exactly the files of the packages")
    sys.exit(bool(problems))

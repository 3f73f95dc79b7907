"""Tests of what one framework alone has, each folder in a process of its own: frameworks crash each other."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_what_only_this_framework_has(framework_alone):
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"conformance/selftests/{framework_alone}",
    ]
    run = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{' '.join(command[1:])}\n{run.stdout[-20000:]}\n{run.stderr[-4000:]}"

"""Tests of what one framework alone has, each folder in a process of its own: frameworks crash each other."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(framework):
    folder = f"conformance/selftests/{framework}"
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def runs(request):
    """What was asked for, by framework, each begun as soon as a core is free."""
    items = [item for item in request.session.items if "framework_alone" in item.fixturenames]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        asked = [item.callspec.params["framework_alone"] for item in items]
        yield {framework: pool.submit(run, framework) for framework in asked}


def test_what_only_this_framework_has(framework_alone, runs):
    done = runs[framework_alone].result()
    assert done.returncode == 0, f"{' '.join(done.args[1:])}\n{done.stdout[-20000:]}\n{done.stderr[-4000:]}"

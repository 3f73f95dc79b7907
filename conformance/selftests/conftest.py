"""A small backend and a small suite, made and checked in a temporary folder, for the tests of the suite itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ALONE = ("mindspore", "paddle", "tensorflow")
"""Folders whose framework must have a process of its own; test_frameworks_alone.py starts one for each."""

DECLARATION = """
from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl

@hookimpl
def unigrad_backend():
    return BackendSpec(
        name={name!r}, framework={framework!r}, install="pip install {framework}", package={package!r},
        capabilities=frozenset({{Capability.CAPTURES}}), guarantees={{Guarantee.THREADS: "kept"}}, dtypes=("float32",),
    )
"""
ARRAYS = """
import numpy as np

def is_tensor(obj):
    return isinstance(obj, np.ndarray)

def to_numpy(tensor):
    return np.array(tensor)
"""
DRIVER = """
import functools, signal, sys
from unigrad_conformance import checking, cli, compare

# as in a terminal: whoever starts the tests in the background may have had these ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

compare.REFERENCE = "fake"
checking.backend_names = lambda: {installed!r}
checking.check_all = functools.partial(checking.check_all, suite="fake_suite")
sys.exit(cli.main(sys.argv[1:]))
"""
HEADER = """
import os, signal, subprocess, sys, time, warnings
import numpy as np
import pytest
from unigrad.errors import UnsupportedError
from unigrad.protocols import Capability, Guarantee
from unigrad.samples import NoSampleError

pytestmark = pytest.mark.clause("G1")
"""


class Pair:
    """Two processes of one program, which writes a line of JSON for each scenario into a file named by its rank."""

    LIMIT_S = 300

    def __init__(self, folder: Path):
        self._folder = folder

    def run(self, program: Path, environments) -> None:
        """Start ``program FOLDER RANK`` twice, with the variables that its framework reads."""
        logs = [(self._folder / f"log{rank}").open("w") for rank in range(2)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-P", str(program), str(self._folder), str(rank)],
                cwd=self._folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
                stdout=log,
                stderr=log,
            )
            for rank, (log, environment) in enumerate(zip(logs, environments, strict=True))
        ]
        try:
            for process in processes:
                process.wait(self.LIMIT_S)
        except subprocess.TimeoutExpired:
            pass  # what was found until then is told by the tests
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for log in logs:
                log.close()

    def both(self, scenario: str) -> list:
        """Return what the two found in one scenario."""
        return [self._found(rank, scenario) for rank in range(2)]

    def _found(self, rank: int, scenario: str) -> dict:
        file = self._folder / str(rank)
        entries = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        told = (self._folder / f"log{rank}").read_text()[-3000:]
        found = next((entry for entry in entries if entry["scenario"] == scenario), None)
        assert found is not None, f"process {rank} did not get to {scenario}:\n{told}"
        assert "failed" not in found, found["failed"]
        return {key: value for key, value in found.items() if key != "scenario"}


class Fake:
    """A folder with fake distributions and a fake suite, and the command run over them."""

    def __init__(self, root: Path):
        self.root = root
        self.site = root / "site"
        self.results = root / "results"
        self.cwd = root / "cwd"
        self.cwd.mkdir(parents=True)
        self.installed = []
        self.write("site/fake_suite/__init__.py", "")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def backend(self, name="fake", framework="fakeframework", known="") -> None:
        package = f"{name}_backend"
        self.installed.append(name)
        metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n"
        self.write(f"site/{package}-1.dist-info/METADATA", metadata)
        self.write(f"site/{package}-1.dist-info/entry_points.txt", f"[unigrad.backends]\n{name} = {package}\n")
        declaration = DECLARATION.format(name=name, framework=framework, package=package)
        self.write(f"site/{package}/__init__.py", declaration)
        for module in ("block", "tape", "checkpoint", "optimizer", "memory", "samples"):
            self.write(f"site/{package}/{module}.py", "")
        self.write(f"site/{package}/arrays.py", ARRAYS)
        self.write(f"site/{package}/rng.py", "def seed(seed):\n    pass\n")
        if known:
            self.write(f"site/{package}/known_failures.toml", known)

    def framework(self, name="fakeframework", text="__version__ = '1.0'\n") -> None:
        self.write(f"site/{name}.py", text)

    def suite(self, text: str, file="test_fake.py") -> None:
        self.write(f"site/fake_suite/{file}", HEADER + text)

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """Run the command ``unigrad`` with the fake suite in place of the real one."""
        process = self.start(*arguments, **environment)
        try:
            output, errors = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its own processes
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def start(self, *arguments: str, driver="", stdout=subprocess.PIPE, stderr=subprocess.PIPE, **environment: str):
        """Start the command; ``driver`` is a line that its process runs first."""
        driver = self.write("driver.py", f"{driver}\n{DRIVER.format(installed=self.installed)}")
        paths = [str(self.site), *filter(None, sys.path)]
        inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
        return subprocess.Popen(
            [sys.executable, "-P", str(driver), *arguments],
            cwd=self.cwd,
            env=inherited,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def check(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return self.run("check", *arguments, "--results", str(self.results), **environment)

    def outcomes(self, name="fake") -> dict:
        """Return test id without file -> result, of the last check."""
        data = json.loads((self.results / f"{name}.json").read_text())
        return {result["id"].partition("::")[2]: result for result in data["results"]}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def fake(tmp_path):
    site = Fake(tmp_path)
    site.framework()
    return site


@pytest.fixture(scope="module")
def module_fake(tmp_path_factory):
    site = Fake(tmp_path_factory.mktemp("fake"))
    site.framework()
    return site


def pytest_ignore_collect(collection_path, config):
    """Leave out a folder of ``ALONE`` unless this process was started for it."""
    if collection_path.name not in ALONE or collection_path.parent != Path(__file__).parent:
        return None
    asked = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return None if any(path.is_relative_to(collection_path) for path in asked) else True


def pytest_generate_tests(metafunc):
    """Give the argument ``framework_alone`` of a test each of ``ALONE``."""
    if "framework_alone" in metafunc.fixturenames:
        metafunc.parametrize("framework_alone", ALONE)

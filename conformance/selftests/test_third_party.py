"""A backend from outside this repository: built, installed and used; the whole suite is kept, and each clause broken is found.

The distributions are those of ``docs/examples/third-party``, made by following ``docs/write-a-backend.md`` (clauses A1 to A3, A6).
Wheels are built without a network and installed into an environment of their own, which sees the packages of this one.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "third-party"


def execute(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)


def wheel(source: Path, folder: Path) -> Path:
    """Build a wheel."""
    options = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder / source.name)
    result = execute(sys.executable, "-m", "pip", "wheel", *options, source)
    assert result.returncode == 0, result.stdout + result.stderr
    (made,) = (folder / source.name).glob("*.whl")
    return made


class Environment:
    """A virtual environment, in which the packages of this one are found behind its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    @classmethod
    def make(cls, folder: Path) -> "Environment":
        result = execute(sys.executable, "-m", "venv", "--without-pip", folder)
        assert result.returncode == 0, result.stderr
        made = cls(folder)
        parents = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({path!r})" for path in sorted(parents)]
        (made.site / "parent.pth").write_text("\n".join(lines) + "\n")
        return made

    def install(self, *wheels: Path) -> None:
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
        result = execute(sys.executable, "-m", "pip", "--python", self.python, "install", *options, *wheels)
        assert result.returncode == 0, result.stdout + result.stderr

    def copy(self, folder: Path) -> "Environment":
        shutil.copytree(self.folder, folder, symlinks=True)
        return Environment(folder)

    def alter(self, file: str, old: str, new: str) -> None:
        """Replace a text in an installed file."""
        path = self.site / file
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{file} holds {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new), encoding="utf-8")

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        variables = {**os.environ, "COLUMNS": "200", "PYTHONDONTWRITEBYTECODE": "1"}
        return execute(self.python, *arguments, cwd=empty, env=variables)

    def unigrad(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "unigrad_conformance.cli", *arguments)

    def listing(self) -> str:
        result = self.unigrad("backends")
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stdout + result.stderr
        for built_in in ("numpy", "torch"):
            assert re.search(rf"\b{built_in}\b", result.stdout), "a built-in backend is not listed"
        return " ".join(result.stdout.split())

    def status(self, name: str) -> str:
        result = self.run("-c", f"import unigrad.plugins as p; print(p.explain({name!r}).status)")
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()


def altered(name: str, folder: Path, old: str, new: str) -> Path:
    """Return a copy of an example with another text in its pyproject.toml."""
    copy = folder / f"altered-{name}"
    shutil.copytree(EXAMPLES / name, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / "pyproject.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return copy


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    return {name: wheel(EXAMPLES / name, folder) for name in ("toygrad", "unigrad-toy")}


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    """Both distributions, installed. Tests only read it."""
    made = Environment.make(tmp_path_factory.mktemp("environment") / "venv")
    made.install(*wheels.values())
    return made


@pytest.fixture
def changed(environment, tmp_path):
    """A copy of the environment, for a test to change."""
    return environment.copy(tmp_path / "venv")


def test_a1_the_backend_is_listed_and_ready(environment):
    assert re.search(r"\btoy +ready\b", environment.listing())
    assert environment.status("toy") == "ready"


def test_a2_without_its_framework_it_is_a_row_that_says_how_to_get_it(wheels, tmp_path):
    alone = Environment.make(tmp_path / "venv")
    alone.install(wheels["unigrad-toy"])
    assert "pip install 'unigrad-toy[toygrad]'" in alone.listing()
    assert alone.status("toy") == "missing"


def test_a2_an_old_framework_is_a_row(changed, tmp_path):
    changed.install(wheel(altered("toygrad", tmp_path, 'version = "1.2"', 'version = "0.9"'), tmp_path / "wheels"))
    assert "needs toygrad >= 1.0; found 0.9" in changed.listing()
    assert changed.status("toy") == "too old"


def test_a3_a_broken_backend_is_a_row_and_leaves_the_others_alone(changed):
    changed.alter("unigrad_toy/__init__.py", "from unigrad.protocols import", "from unigrad.protocol import")
    assert "unigrad.protocol" in changed.listing()
    assert changed.status("toy") == "broken"
    result = changed.run("-c", "import unigrad.plugins as p; print(p.get_backend('numpy').spec.name)")
    assert result.stdout == "numpy\n", result.stderr


def test_a2_a_second_distribution_of_the_name_is_a_row_that_names_both(changed, tmp_path):
    second = altered("unigrad-toy", tmp_path, 'name = "unigrad-toy"', 'name = "unigrad-toy-too"')
    changed.install(wheel(second, tmp_path / "wheels"))
    text = changed.listing()
    assert "unigrad-toy (unigrad_toy)" in text
    assert "unigrad-toy-too (unigrad_toy)" in text
    assert changed.status("toy") == "conflict"


def test_a6_a_backend_uses_public_names_of_unigrad_only():
    """And no other package than its framework and NumPy."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (EXAMPLES / "unigrad-toy").rglob("*.py"))
    imported = set(re.findall(r"^(?:from|import) (\S+)", source, re.MULTILINE))
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {
        "numpy",
        "toygrad",
        "unigrad",
        "unigrad_toy",
    }
    page = (ROOT / "docs" / "write-a-backend.md").read_text(encoding="utf-8")
    for name in sorted(name for name in imported if name.partition(".")[0] == "unigrad"):
        assert f"`{name}`" in page or name == "unigrad", f"{name} is not among what the page says may be imported"
    assert not re.search(r"from unigrad[.\w]* import .*\b_\w", source)
    assert not re.search(r"\b(?:region|tree|unigrad)\._\w", source)


USE = """
import numpy as np
import toygrad, unigrad
from toygrad import functions, layers, randomness

class Model(toygrad.Module):
    def __init__(self):
        self.first = layers.Dense([[0.5, 0.25], [-1.0, 2.0]], [0.1, 0.2])
        self.last = layers.Dense([[1.0, -3.0]])
        self.spare = layers.Dense([[1.0]])

    def forward(self, x):
        return self.last(functions.tanh(self.first(x)))

block = unigrad.wrap(Model())
x = toygrad.Tensor([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]])

with unigrad.GradientCollector(block, on_unused="ignore") as collector:
    collector.backward(functions.total(block(x)))
h = np.tanh(x.data @ [[0.5, -1.0], [0.25, 2.0]] + [0.1, 0.2])
inner = (1 - h * h) * [1.0, -3.0]
wanted = {"first.weight": inner.T @ x.data, "first.bias": inner.sum(0), "last.weight": h.sum(0)[None]}
assert set(collector.gradients) == set(wanted), set(collector.gradients)
for name, value in wanted.items():  # a few sums of three float64 terms
    np.testing.assert_allclose(collector.gradients[name].data, value, rtol=1e-14)
assert set(collector.usage.unused) == {"spare.weight"}, collector.usage

with unigrad.GradientCollector(block, on_unused="ignore") as collector:
    loss = functions.total(block(x) + 1.0)
    collector.backward(loss)
    try:
        collector.backward(loss)
    except unigrad.GraphReleasedError:
        print("refused")

def gradients(run):
    randomness.seed(5)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        noise = functions.cast(randomness.normal((3, 2)), "float64")
        collector.backward(functions.total(run(x + noise)))
    return {name: gradient.data.tobytes() for name, gradient in collector.gradients.items()}

plain, again = gradients(block), gradients(unigrad.checkpoint(block))
assert plain == again and len(plain) == 3
"""


def test_g1_g3_g6_c1_it_agrees_with_the_mathematics_in_a_program_of_its_user(environment):
    result = environment.run("-c", USE)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "refused\n"


def cells(output: str) -> dict[str, str]:
    """Return the cell of each clause in the matrix that a check of one backend prints."""
    return dict(re.findall(r"^([A-Z]\d+) .*  (\S.*?) *$", output, re.MULTILINE))


def test_a6_the_whole_suite_is_kept(environment):
    """Exit 0: no failure, and no mandatory clause without a sample."""
    result = environment.unigrad("check", "toy")
    assert result.returncode == 0, result.stdout + result.stderr
    found = cells(result.stdout)
    assert len(found) > 50, sorted(found)
    for clause, cell in found.items():
        assert cell.startswith(("kept", "refused", "not yet")), f"{clause}: {cell}"
    # Refused is what it does not declare, never the whole of a clause that is mandatory.
    assert {clause for clause, cell in found.items() if cell == "refused"} <= {"B4", "G17", "Y1"}


FAULTS = {
    "B3": ("test_block_modes", "block", "        module.training = training\n", "        pass\n"),
    "G1": ("test_collector_accumulate", "arrays", "        return left + right\n", "        return right\n"),
    "G3": (
        "test_collector_release",
        "tape",
        "    toygrad.release(graph.nodes)\n",
        "    toygrad.release(graph.nodes[:1])\n",
    ),
    "G6": (
        "test_collector_accumulate",
        "tape",
        "None if array is None else",
        "None if array is None or not array.any() else",
    ),
    "R3": ("test_usage_warnings", "tape", "        return found\n", "        return []\n"),
    "C2": ("test_cases_c", "rng", "    randomness.generator.bit_generator.state = state\n", "    pass\n"),
    "C3": ("test_checkpoint_buffers", "block", "        vars(entry.owner)[entry.key] = tensor\n", "        pass\n"),
    "C8": ("test_other_values_are_noticed", "checkpoint", "digest_size=16).digest()", "digest_size=16).name"),
    "M1": ("test_cases_j", "arrays", "functions.join(tensors, axis)", "functions.join(tensors[::-1], axis)"),
}
"""Clause -> tests that are run, module of the backend, and what is put in place of what, so that the clause is not kept any more."""


@pytest.mark.parametrize("clause", FAULTS)
def test_a6_a_clause_that_is_not_kept_is_named(changed, clause):
    tests, module, old, new = FAULTS[clause]
    changed.alter(f"unigrad_toy/{module}.py", old, new)
    result = changed.unigrad("check", "toy", "-k", tests)
    assert result.returncode == 1, result.stdout[-3000:] + result.stderr
    assert cells(result.stdout)[clause].startswith("failed"), result.stdout[:3000]
    assert re.search(rf"^FAILED: toy, test_.* \(.*\b{clause}\b.*\)$", result.stdout, re.MULTILINE)

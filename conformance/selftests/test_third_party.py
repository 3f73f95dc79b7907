"""A backend from outside this repository: built, installed, listed, loaded and used (clauses A1 to A3, B, G, C).

The distributions are those of ``docs/examples/third-party``, made by following ``docs/write-a-backend.md``. Wheels are
built without a network and installed into a folder of their own, which processes are then given.
"""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "third-party"


def pip(*arguments: object) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def install(source: Path, folder: Path, wheels: Path) -> None:
    """Build a wheel of ``source`` and unpack it into ``folder``, as an installation does."""
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", wheels / source.name, source)
    (wheel,) = (wheels / source.name).glob("*.whl")
    pip("install", "--no-deps", "--no-index", "--target", folder, wheel)


def altered(name: str, tmp_path: Path, **changes: tuple[str, str]) -> Path:
    """A copy of an example with a text replaced in each given file."""
    copy = tmp_path / f"altered-{name}"
    for path in (EXAMPLES / name).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            target = copy / path.relative_to(EXAMPLES / name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    for key, (old, new) in changes.items():
        path = copy / key
        text = path.read_text()
        assert old in text, f"{key} does not hold {old!r}"
        path.write_text(text.replace(old, new))
    return copy


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folders with the framework and with the backend, each installed once."""
    base = tmp_path_factory.mktemp("third-party")
    folders = {"toygrad": base / "framework", "unigrad-toy": base / "backend"}
    for name, folder in folders.items():
        install(EXAMPLES / name, folder, base / "wheels")
    return folders


def run(*folders: Path, code: str = "", command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = [sys.executable, "-m", *command] if command else [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        arguments,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        cwd=folders[0].parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


def listing(*folders: Path) -> str:
    result = run(*folders, command=("unigrad_conformance.cli", "backends"))
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    for built_in in ("numpy", "torch"):
        assert re.search(rf"\b{built_in}\b", result.stdout), "a built-in backend is not listed"
    return " ".join(result.stdout.split())


def status(name: str, *folders: Path) -> str:
    result = run(*folders, code=f"import unigrad.plugins as p; print(p.explain({name!r}).status)")
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a1_the_backend_is_listed_and_ready(installed):
    folders = installed["unigrad-toy"], installed["toygrad"]
    assert re.search(r"\btoy\b", listing(*folders))
    assert status("toy", *folders) == "ready"


def test_a2_without_its_framework_it_is_a_row_that_says_how_to_get_it(installed):
    assert "pip install 'unigrad-toy[toygrad]'" in listing(installed["unigrad-toy"])
    assert status("toy", installed["unigrad-toy"]) == "missing"


def test_a2_an_old_framework_is_a_row(installed, tmp_path):
    change = {"pyproject.toml": ('version = "1.2"', 'version = "0.9"')}
    install(altered("toygrad", tmp_path, **change), tmp_path / "old", tmp_path)
    folders = installed["unigrad-toy"], tmp_path / "old"
    assert "needs toygrad >= 1.0; found 0.9" in listing(*folders)
    assert status("toy", *folders) == "too old"


def test_a3_a_broken_backend_is_a_row_and_leaves_the_others_alone(installed, tmp_path):
    change = {"unigrad_toy/__init__.py": ("from unigrad.protocols import", "from unigrad.protocol import")}
    install(altered("unigrad-toy", tmp_path, **change), tmp_path / "broken", tmp_path)
    folders = tmp_path / "broken", installed["toygrad"]
    assert "unigrad.protocol" in listing(*folders)
    assert status("toy", *folders) == "broken"
    result = run(*folders, code="import unigrad.plugins as p; print(p.get_backend('numpy').spec.name)")
    assert result.stdout == "numpy\n", result.stderr


def test_a2_a_second_distribution_of_the_name_is_a_row_that_names_both(installed, tmp_path):
    change = {"pyproject.toml": ('name = "unigrad-toy"', 'name = "unigrad-toy-too"')}
    install(altered("unigrad-toy", tmp_path, **change), tmp_path / "second", tmp_path)
    folders = installed["unigrad-toy"], tmp_path / "second", installed["toygrad"]
    text = listing(*folders)
    assert "unigrad-toy (unigrad_toy)" in text
    assert "unigrad-toy-too (unigrad_toy)" in text
    assert status("toy", *folders) == "conflict"


def test_a6_every_function_has_the_signature_of_its_protocol(installed):
    result = run(
        installed["unigrad-toy"],
        installed["toygrad"],
        code="import unigrad.plugins as p; print(p.check_interface(p.get_backend('toy')))",
    )
    assert result.stdout == "[]\n", result.stderr


MODEL = """
import numpy as np
import toygrad, unigrad

class Model(toygrad.Module):
    def __init__(self):
        self.first = toygrad.Dense([[0.5, 0.25], [-1.0, 2.0]], [0.1, 0.2])
        self.last = toygrad.Dense([[1.0, -3.0]])
        self.spare = toygrad.Dense([[1.0]])

    def forward(self, x):
        return self.last(toygrad.tanh(self.first(x)))

block = unigrad.wrap(Model())
x = toygrad.Tensor([[1.0, 2.0], [3.0, 4.0], [-1.0, 0.5]])
"""


def test_g1_g6_a_collector_serves_it_and_agrees_with_the_mathematics(installed):
    result = run(
        installed["unigrad-toy"],
        installed["toygrad"],
        code=MODEL
        + """
with unigrad.GradientCollector(block, on_unused="ignore") as collector:
    collector.backward(toygrad.total(block(x)))
h = np.tanh(x.data @ [[0.5, -1.0], [0.25, 2.0]] + [0.1, 0.2])
inner = (1 - h * h) * [1.0, -3.0]
wanted = {"first.weight": inner.T @ x.data, "first.bias": inner.sum(0), "last.weight": h.sum(0)[None]}
assert set(collector.gradients) == set(wanted), set(collector.gradients)
for name, value in wanted.items():  # a few sums of three float64 terms
    np.testing.assert_allclose(collector.gradients[name].data, value, rtol=1e-14)
assert set(collector.usage.unused) == {"spare.weight"}, collector.usage
""",
    )
    assert result.returncode == 0, result.stderr


def test_g3_a_released_graph_is_refused(installed):
    result = run(
        installed["unigrad-toy"],
        installed["toygrad"],
        code=MODEL
        + """
with unigrad.GradientCollector(block, on_unused="ignore") as collector:
    loss = toygrad.total(block(x) + 1.0)
    collector.backward(loss)
    try:
        collector.backward(loss)
    except unigrad.GraphReleasedError:
        print("refused")
""",
    )
    assert result.stdout == "refused\n", result.stderr


def test_c1_a_checkpoint_gives_the_bits_of_the_plain_run(installed):
    result = run(
        installed["unigrad-toy"],
        installed["toygrad"],
        code=MODEL
        + """
def gradients(run):
    toygrad.seed(5)
    with unigrad.GradientCollector(block, on_unused="ignore") as collector:
        collector.backward(toygrad.total(run(x + toygrad.noise((3, 2)))))
    return {name: gradient.data.tobytes() for name, gradient in collector.gradients.items()}

plain, again = gradients(block), gradients(unigrad.checkpoint(block))
assert plain == again and len(plain) == 3
""",
    )
    assert result.returncode == 0, result.stderr


def test_a6_the_suite_runs_against_it_by_name(installed, tmp_path):
    """A promise that toygrad keeps is green; a mandatory clause for which it has no sample is not."""
    folders = installed["unigrad-toy"], installed["toygrad"]
    kept = run(
        *folders, command=("unigrad_conformance.cli", "check", "toy", "-k", "test_repeated_backward_on_one_graph")
    )
    assert kept.returncode == 0, kept.stdout + kept.stderr
    assert re.search(r"^G2 .*\bkept\b", kept.stdout, re.MULTILINE), kept.stdout
    lacking = run(*folders, command=("unigrad_conformance.cli", "check", "toy", "-k", "B9"))
    assert lacking.returncode == 1, lacking.stdout + lacking.stderr
    assert re.search(r"^B9 .*\bno sample\b", lacking.stdout, re.MULTILINE), lacking.stdout

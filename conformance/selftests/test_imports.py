"""Which package may import which (design section 2); no framework is imported before it is asked for (clause A1).

Each check has a control that shows that it can fail.
"""

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"jax", "keras", "mindspore", "mlx", "paddle", "tensorflow", "torch"}
BACKENDS = {path.name for path in (ROOT / "backends").iterdir() if (path / "__init__.py").exists()}
OWN = {
    "unigrad_mindspore": {"mindspore"},
    "unigrad_paddle": {"paddle"},
    "unigrad_tensorflow": {"keras", "tensorflow"},
    "unigrad_torch": {"torch"},
}
PACKAGES = {
    "unigrad": ROOT / "unigrad",
    "unigrad_conformance": ROOT / "conformance" / "unigrad_conformance",
    **{name: ROOT / "backends" / name for name in BACKENDS},
}


def imported(source: str) -> set[str]:
    """Top packages that a source imports, by statement anywhere in it or by ``import_module("...")``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and node.args:
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if function in {"import_module", "__import__", "importorskip"} and isinstance(name, ast.Constant):
                found.add(str(name.value))
    return {name.partition(".")[0] for name in found}


def forbidden(package: str) -> set[str]:
    """What no file of a package may import."""
    if package == "unigrad":
        return FRAMEWORKS | BACKENDS | {"unigrad_conformance"}
    if package == "unigrad_conformance":
        return FRAMEWORKS | BACKENDS
    return (FRAMEWORKS - OWN.get(package, set())) | (BACKENDS - {package}) | {"unigrad_conformance"}


def trespasses(package: str, folder: Path) -> list[str]:
    """Each file of a package with what it imports against the rule."""
    faults = []
    for path in sorted(folder.rglob("*.py")):
        wrong = imported(path.read_text(encoding="utf-8")) & forbidden(package)
        if wrong:
            faults.append(f"{path.relative_to(folder.parent)} imports {', '.join(sorted(wrong))}")
    return faults


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_point_one_way(package):
    files = list(PACKAGES[package].rglob("*.py"))
    assert len(files) > 3, f"only {len(files)} files of {package} were read"
    assert trespasses(package, PACKAGES[package]) == []


@pytest.mark.parametrize(
    ("package", "source", "wrong"),
    [
        ("unigrad", "def f():\n    import torch.nn", "torch"),
        ("unigrad", "from unigrad_numpy.tensor import Tensor", "unigrad_numpy"),
        ("unigrad", "import importlib\nimportlib.import_module('unigrad_conformance.cli')", "unigrad_conformance"),
        ("unigrad_conformance", "pytest.importorskip('torch')", "torch"),
        ("unigrad_conformance", "import unigrad_torch as t", "unigrad_torch"),
        ("unigrad_torch", "from unigrad_numpy import tensor", "unigrad_numpy"),
        ("unigrad_numpy", "import torch", "torch"),
    ],
)
def test_the_check_of_directions_can_fail(tmp_path, package, source, wrong):
    folder = tmp_path / package
    folder.mkdir()
    (folder / "innocent.py").write_text("import numpy, pluggy, unigrad.errors\nfrom . import near\n")
    assert trespasses(package, folder) == []
    (folder / "guilty.py").write_text(source)
    assert trespasses(package, folder) == [f"{package}/guilty.py imports {wrong}"]


def test_the_suite_names_no_framework_and_no_backend():
    """Not even as text that a test could branch on; examples in docstrings and help are not code."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="unigrad.backends")} - {"numpy"}
    names |= FRAMEWORKS | BACKENDS
    faults = []
    for path in sorted(PACKAGES["unigrad_conformance"].rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
                faults.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.value!r}")
    assert faults == []


def frameworks_after(code: str) -> set[str]:
    """Frameworks, and backends' own modules, that a fresh process has imported after running some code."""
    report = "\nimport sys; print('modules:', *sys.modules)"
    result = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    modules = set(result.stdout.rpartition("modules:")[2].split())
    inner = {name for name in modules if "." in name and name.partition(".")[0] in BACKENDS}
    return (modules & FRAMEWORKS) | inner


LISTING = "from unigrad_conformance.cli import main\ntry: main(['backends'])\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "code",
    [
        "import unigrad",
        "import unigrad.plugins as p; p.backend_names()",
        "import unigrad.plugins as p; [p.explain(name) for name in p.backend_names()]",
        LISTING,
        *(f"import {name}" for name in sorted(BACKENDS)),
    ],
)
def test_a1_no_framework_is_imported_by(code):
    assert frameworks_after(code) == set()


def test_the_check_of_processes_can_fail():
    assert "torch" in frameworks_after("import unigrad.plugins as p; p.get_backend('torch')")
    assert "unigrad_numpy.tape" in frameworks_after("import unigrad.plugins as p; p.get_backend('numpy')")


def test_the_listing_lists():
    result = subprocess.run([sys.executable, "-c", LISTING], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "numpy" in result.stdout
    assert "torch" in result.stdout

"""The distribution: exact contents of the wheel, nothing else importable, README's commands and example (design sections 2, 13)."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(*command: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout without what git ignores, so that a build sees what a user's would."""
    folder = tmp_path_factory.mktemp("packaging") / "copy"
    ignore = shutil.ignore_patterns(".git", ".venv", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, folder, ignore=ignore)
    return folder


def wheel_of(folder: Path, into: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", into, folder, cwd=folder.parent)
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(copy):
    return wheel_of(copy, copy.parent / "dist")


@pytest.fixture(scope="module")
def check_contents(copy):
    """The function ``differences`` of ``.ci/wheel_contents.py``, which the check before landing uses as well."""
    spec = importlib.util.spec_from_file_location("wheel_contents", copy / ".ci" / "wheel_contents.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.differences


def test_the_wheel_holds_exactly_the_packages(wheel, check_contents):
    assert check_contents(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    packages = {name for name in tops if not name.endswith(".dist-info")}
    backends = {f"unigrad_{name}" for name in ("mindspore", "numpy", "paddle", "tensorflow", "torch")}
    assert packages == {"unigrad", "unigrad_conformance", *backends}


def test_the_check_of_contents_can_fail(wheel, check_contents, tmp_path):
    spoilt = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(spoilt, "w") as new:
        for name in old.namelist():
            if name not in ("unigrad/errors.py", "unigrad_numpy/py.typed"):
                new.writestr(name, old.read(name))
        new.writestr("conformance/selftests/test_core.py", "")
    assert check_contents(spoilt) == [
        "missing from the wheel: unigrad/errors.py",
        "missing from the wheel: unigrad_numpy/py.typed",
        "not wanted in the wheel: conformance/selftests/test_core.py",
        "unigrad_numpy has no py.typed",
    ]


def test_check_wheel_contents_agrees(copy, wheel):
    run(Path(sys.executable).parent / "check-wheel-contents", wheel, cwd=copy)


def test_a_stray_file_beside_the_packages_does_not_reach_the_wheel(copy, tmp_path):
    stray = copy.parent / "stray"
    shutil.copytree(copy, stray)
    (stray / "backends" / "notes.txt").write_text("not shipped")
    (stray / "conformance" / "loose.py").write_text("")
    with zipfile.ZipFile(wheel_of(stray, tmp_path)) as archive:
        assert not {"notes.txt", "loose.py"} & {Path(name).name for name in archive.namelist()}


NAMES = ("backends", "conformance", "docs", "selftests", "unigrad", "unigrad_numpy", "unigrad_conformance")
FIND = (
    "import importlib.util as u, site, sys; site.addsitedir(sys.argv[1]);"
    f"print(*(name for name in {NAMES!r} if u.find_spec(name)))"
)


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_only_the_packages_become_importable(kind, copy, wheel, tmp_path):
    """The interpreter runs without its own site-packages, so that only what is installed here can be found."""
    target, editables = tmp_path / "target", Path(importlib.util.find_spec("editables").origin).parent
    what = [wheel] if kind == "wheel" else ["--no-build-isolation", "--editable", copy]
    run(
        sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, *what, cwd=tmp_path
    )
    shutil.copytree(editables, target / "editables")
    found = run(sys.executable, "-I", "-S", "-c", FIND, target, cwd=tmp_path).stdout.split()
    assert found == ["unigrad", "unigrad_numpy", "unigrad_conformance"]


def test_the_check_of_what_is_importable_can_fail(copy, tmp_path):
    (tmp_path / "loose.pth").write_text(f"{copy}\n")
    assert "backends" in run(sys.executable, "-I", "-S", "-c", FIND, tmp_path, cwd=tmp_path).stdout.split()


def test_extras_and_dependencies_are_those_of_the_design():
    metadata = importlib.metadata.metadata("unigrad")
    required = importlib.metadata.requires("unigrad")
    # An editable installation adds what it needs itself.
    base = {re.match(r"[\w-]+", line)[0] for line in required if "extra ==" not in line}
    check = {re.match(r"[\w-]+", line)[0] for line in required if re.search(r"extra == ['\"]check['\"]", line)}
    assert base - {"editables"} == {"numpy", "pluggy", "safetensors"}
    assert check == {"pytest", "hypothesis", "rich", "jinja2"}
    assert set(metadata.get_all("Provides-Extra")) == {
        "all",
        "check",
        "dev",
        "mindspore",
        "paddle",
        "tensorflow",
        "torch",
    }


def test_the_tested_versions_are_pinned():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert pins["torch"] == "2.13.0"
    assert pins["numpy"] == "1.26.4"
    here = [line for line in importlib.metadata.requires("unigrad") if "sys_platform !=" not in line]
    required = {re.match(r"[\w-]+", line)[0].lower() for line in here} - {"unigrad"}
    assert required <= {name.lower().replace("_", "-") for name in pins}


def test_readme_has_the_two_commands():
    commands = re.findall(r"^python -m venv .*$", README, re.MULTILINE)
    start = "python -m venv .venv && . .venv/bin/activate && pip install"
    assert commands == [
        f"{start} '.[check]' && unigrad check",
        f"{start} -c constraints.txt '.[all,dev]' && pytest -n auto --dist loadfile",
    ]


def test_readme_examples_run_and_print_what_is_said(tmp_path):
    program = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    (wanted,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    assert run(sys.executable, "-W", "error", "-c", program, cwd=tmp_path).stdout == wanted


def test_links_of_the_documents_lead_somewhere():
    missing = []
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            if not (document.parent / target).exists():
                missing.append(f"{document.name}: {target}")
    assert missing == []

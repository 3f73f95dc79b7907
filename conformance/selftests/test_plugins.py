"""Clauses A1 to A6: backends are listed from metadata, loaded by name, found by object; each fault has its own error.

Fake distributions are folders on ``sys.path``; each case runs in its own process, since modules cannot be unimported.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import unigrad.plugins as plugins
from unigrad.errors import ArgumentTypeError, BackendNotFoundError, UnsupportedError
from unigrad.interface import MODULES, check_interface
from unigrad.protocols import BackendSpec, Capability
from unigrad.versions import version_key

DECLARATION = """
from unigrad.protocols import BackendSpec, hookimpl

@hookimpl
def unigrad_backend():
    return BackendSpec(name={name!r}, framework={framework!r}, install={install!r}, package={package!r}, {extra})
"""
STUB = """
class Thing: pass
def is_model(obj): return type(obj).__module__.partition('.')[0] == {framework!r}
is_tensor = is_optimizer = is_generator = lambda obj: False
"""


class Site:
    """A folder of fake distributions, and processes that see it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def module(self, path: str, source: str = "") -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))

    def distribution(self, name: str, version: str = "1.0", **entries: str) -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[unigrad.backends]\n{lines}" if entries else "")

    def backend(self, name: str, framework: str | None = None, extra: str = "", declared: str | None = None) -> None:
        """A whole backend, its framework not included; ``framework`` defaults to a name of its own."""
        framework, package = framework or f"{name}frame", f"unigrad_{name}"
        install = f"pip install {framework}"
        fields = {"framework": framework, "install": install, "package": package, "extra": extra}
        self.module(f"{package}/__init__.py", DECLARATION.format(name=declared or name, **fields))
        for part in MODULES:
            self.module(f"{package}/{part}.py", f"import {framework}\n" + STUB.format(framework=framework))
        self.distribution(f"unigrad-{name}", **{name: package})

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": path},
            cwd=self.folder.parent,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def error(self, name: str, before: str = "") -> tuple[str, str, str]:
        """Class, text, and class of the cause of the error that ``get_backend(name)`` raises."""
        result = self.run(f"""
            import json
            import unigrad.plugins as plugins
            {before}
            try:
                plugins.get_backend({name!r})
            except Exception as error:
                print(json.dumps([type(error).__name__, str(error), type(error.__cause__).__name__]))
        """)
        assert result.returncode == 0, result.stderr
        assert result.stdout, "no error was raised"
        kind, text, cause = json.loads(result.stdout)
        return kind, text, cause

    def rows(self, *names: str) -> dict[str, str]:
        """Status of each backend, all explained in one process."""
        result = self.run(f"""
            import json
            import unigrad.plugins as plugins
            print(json.dumps({{name: plugins.explain(name).status for name in {list(names)!r}}}))
        """)
        assert result.returncode == 0, result.stderr
        rows: dict[str, str] = json.loads(result.stdout)
        return rows


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)


def test_a1_names_come_from_metadata_and_import_nothing(site):
    site.backend("good")
    site.module("unigrad_good/__init__.py", "raise RuntimeError('imported')")
    result = site.run("import unigrad.plugins as p, sys; print(p.backend_names(), 'unigrad_good' in sys.modules)")
    assert "'good'" in result.stdout
    assert result.stdout.endswith("False\n")
    assert "imported" in site.run("import unigrad_good").stderr  # the control: the module would have told


def test_a1_a_backend_is_loaded_by_name_alone_and_once(site):
    site.backend("good")
    site.backend("other")
    site.module("goodframe.py", "__version__ = '3.1'")
    result = site.run("""
        import sys
        import unigrad.plugins as p
        backend = p.get_backend("good")
        assert backend is p.get_backend("good")
        print(backend.spec.name, backend.version, backend.tape.__name__, "unigrad_other" in sys.modules)
    """)
    assert result.stdout == "good 3.1 unigrad_good.tape False\n", result.stderr


def test_a1_backend_of_asks_only_frameworks_already_imported(site):
    site.backend("good")
    site.backend("other")
    for name in ("good", "other"):
        site.module(f"{name}frame.py", "class Model: pass")
    result = site.run("""
        import sys
        import unigrad.plugins as p
        import goodframe
        class Derived(goodframe.Model): pass
        Derived.__module__ = "goodframe"
        print(p.backend_of(goodframe.Model()).spec.name, p.backend_of(Derived()).spec.name, "otherframe" in sys.modules)
    """)
    assert result.stdout == "good good False\n", result.stderr


def test_a1_backend_of_remembers_the_type_without_keeping_it_alive(site):
    site.backend("good")
    site.module("goodframe.py", "")
    result = site.run("""
        import gc, weakref
        import unigrad.plugins as p
        import goodframe
        kind = type("Model", (), {"__module__": "goodframe"})
        obj, gone = kind(), weakref.ref(kind)
        p.backend_of(obj)
        p.get_backend("good").block.is_model = None
        p.backend_of(obj)  # would call None if it asked again
        del obj, kind
        gc.collect()
        print(gone())
    """)
    assert result.stdout == "None\n", result.stderr


BUILT_INS = {
    "numpy": """
        import numpy, unigrad_numpy
        from unigrad_numpy import nn, optim
        layer = nn.Linear(2, 3)
        objects = [layer, layer.weight, unigrad_numpy.Tensor([1.0]), optim.SGD(layer.parameters(), 0.1)]
        other = "torch"
    """,
    "torch": """
        import torch
        layer = torch.nn.Linear(2, 3)
        objects = [layer, layer.weight, torch.ones(1), torch.optim.SGD(layer.parameters(), 0.1), torch.Generator()]
        other = "unigrad_numpy.tape"
    """,
}


@pytest.mark.parametrize("name", BUILT_INS)
def test_a1_backend_of_knows_what_the_built_ins_make_and_loads_no_other(site, name):
    result = site.run(
        textwrap.dedent(BUILT_INS[name])
        + """
import sys
import unigrad.plugins as p
print({p.backend_of(obj).spec.name for obj in objects}, other in sys.modules)
"""
    )
    assert result.stdout == f"{{'{name}'}} False\n", result.stderr


def test_a1_an_array_of_numpy_is_nobodys_and_loads_nothing(site):
    result = site.run("""
        import sys
        import numpy
        import unigrad.plugins as p
        try: p.backend_of(numpy.zeros(2))
        except TypeError as error: print(error)
        print([name for name in sys.modules if name.startswith(("unigrad_numpy.", "torch"))])
    """)
    assert "no backend knows an object of type 'numpy.ndarray'" in result.stdout, result.stderr
    assert result.stdout.endswith("[]\n")


def test_a1_backend_of_an_unknown_object_names_its_type_and_what_is_installed(site):
    site.backend("good")
    with pytest.raises(ArgumentTypeError, match=r"no backend knows an object of type 'builtins\.object'; installed: "):
        plugins.backend_of(object())
    result = site.run("import unigrad.plugins as p\ntry: p.backend_of(3)\nexcept TypeError as e: print(e)")
    assert "'builtins.int'" in result.stdout
    assert "good" in result.stdout


def test_a1_backend_of_an_object_whose_backend_cannot_be_loaded_says_why(site):
    site.backend("old", extra="minimum='2.0'")
    site.module("oldframe.py", "__version__ = '1.0'\nclass Model: pass")
    result = site.run("""
        import unigrad.plugins as p, oldframe
        try: p.backend_of(oldframe.Model())
        except Exception as error: print(type(error).__name__, error)
    """)
    assert result.stdout.startswith("BackendTooOldError backend 'old' needs oldframe >= 2.0; found 1.0"), result.stderr


def test_a2_unknown(site):
    site.backend("good")
    kind, text, _ = site.error("jaxx")
    assert kind == "BackendNotFoundError"
    assert text.startswith("no backend named 'jaxx'; installed: ")
    assert "good" in text
    with pytest.raises(LookupError):
        plugins.get_backend("jaxx")


def test_a2_missing_framework_gives_the_command_and_chains_the_cause(site):
    site.backend("lone")
    assert site.error("lone") == (
        "BackendMissingError",
        "backend 'lone' needs 'loneframe', which is not installed. Install it with: pip install loneframe",
        "ModuleNotFoundError",
    )


def test_a2_missing_framework_of_a_dotted_name(site):
    site.backend("dotted", framework="absent.core")
    assert site.error("dotted")[0] == "BackendMissingError"
    site.module("absent/__init__.py")
    assert site.error("dotted")[0] == "BackendMissingError"
    assert site.rows("dotted") == {"dotted": "ready"}  # finding absent.core would import absent


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise OSError('libcore.so: no such file')", "OSError"),
        ("import a_module_that_it_needs", "ModuleNotFoundError"),
        ("raise SystemExit(3)", "SystemExit"),
    ],
)
def test_a2_a_framework_that_does_not_import_is_not_called_missing(site, source, cause):
    site.backend("sick")
    site.module("sickframe.py", source)
    kind, text, chained = site.error("sick")
    assert kind == "BackendBrokenError"
    assert text.startswith(f"backend 'sick' needs 'sickframe', which is installed but does not import: {cause}: ")
    assert chained == cause


@pytest.mark.parametrize("part", ["__init__", "tape"])
def test_a2_a_backend_whose_own_code_does_not_import_is_broken(site, part):
    site.backend("buggy")
    site.module("buggyframe.py")
    site.module(f"unigrad_buggy/{part}.py", "1 / 0")
    kind, text, cause = site.error("buggy")
    assert (kind, cause) == ("BackendBrokenError", "ZeroDivisionError")
    assert "unigrad_buggy" in text
    assert "division by zero" in text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "must hold one @hookimpl"),
        ("import unigrad.protocols as p\n@p.hookimpl\ndef unigrad_backend(): return 3", "returns a BackendSpec"),
        ("import unigrad.protocols as p\n@p.hookimpl\ndef unigrad_backend(x): return 3", "PluginValidationError"),
        ("import unigrad.protocols as p\n@p.hookimpl\ndef unigrad_backed(): return 3", "PluginValidationError"),
    ],
)
def test_a2_a_declaration_that_declares_nothing_usable_is_broken(site, source, words):
    site.backend("odd")
    site.module("unigrad_odd/__init__.py", source)
    kind, text, _ = site.error("odd")
    assert kind == "BackendBrokenError"
    assert words in text
    assert "unigrad-odd" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"declared": "even"}, "declares the name 'even'"),
        ({"extra": "minimum='newest'"}, "'newest' is not a version"),
    ],
)
def test_a2_a_declaration_that_contradicts_itself_is_broken(site, changes, words):
    site.backend("odd", **changes)
    kind, text, _ = site.error("odd")
    assert kind == "BackendBrokenError"
    assert words in text


def test_a2_too_old_by_metadata_is_found_before_the_framework_is_imported(site):
    site.backend("old", extra="minimum='2.1'")
    site.module("oldframe.py", "raise RuntimeError('imported')")
    site.distribution("oldframe", "1.13")
    kind, text, _ = site.error("old")
    assert kind == "BackendTooOldError"
    assert text.startswith("backend 'old' needs oldframe >= 2.1; found 1.13")
    assert text.endswith("pip install oldframe")


def test_a2_too_old_by_the_frameworks_own_word(site):
    site.backend("old", extra="minimum='2.1'")
    site.module("oldframe.py", "__version__ = '2.0.9'")
    assert site.error("old")[0] == "BackendTooOldError"


@pytest.mark.parametrize("version", ["2.1", "2.1.0+cpu", "2.10", "2.2.0a0+git12", "built from source"])
def test_a2_new_enough(site, version):
    site.backend("new", extra="minimum='2.1'")
    site.module("newframe.py", f"__version__ = {version!r}")
    result = site.run("import unigrad.plugins as p; print(p.get_backend('new').version)")
    assert result.stdout == f"{version}\n", result.stderr


def test_a2_two_distributions_of_one_name_are_both_named(site):
    site.backend("twin")
    site.module("twinframe.py")
    site.module("unigrad_rival.py")
    site.distribution("unigrad-rival", twin="unigrad_rival")
    kind, text, _ = site.error("twin")
    assert kind == "BackendConflictError"
    assert text.startswith("two distributions declare backend 'twin': ")
    assert text.endswith("; uninstall one")
    assert "unigrad-twin (unigrad_twin)" in text
    assert "unigrad-rival (unigrad_rival)" in text


def test_a3_each_fault_is_a_row_and_the_good_one_is_ready(site):
    site.backend("good")
    site.module("goodframe.py")
    site.backend("lone")
    site.backend("buggy")
    site.module("unigrad_buggy/__init__.py", "raise SystemExit")
    site.backend("old", extra="minimum='2'")
    site.distribution("oldframe", "1.0")
    site.backend("twin")
    site.distribution("unigrad-rival", twin="unigrad_rival")
    expected = {"buggy": "broken", "good": "ready", "lone": "missing", "old": "too old", "twin": "conflict"}
    expected["x"] = "unknown"
    assert site.rows(*expected) == expected
    result = site.run("import unigrad.plugins as p, unigrad.protocols\nprint(p.get_backend('good').spec.name)")
    assert result.stdout == "good\n", result.stderr


def test_a2_two_backends_of_one_framework_are_an_error_that_names_both(site):
    """One of them would serve its objects in silence, and the suite would check that one under the other's name."""
    site.module("oneframe.py", "class Thing: pass")
    site.backend("first", framework="oneframe")
    site.backend("second", framework="oneframe")
    result = site.run("""
        import oneframe, unigrad, unigrad.plugins as plugins
        try: plugins.backend_of(oneframe.Thing())
        except unigrad.BackendConflictError as error: print(error)
    """)
    wanted = (
        "two backends serve objects of 'oneframe': 'first' (unigrad_first) and 'second' (unigrad_second); uninstall one"
    )
    assert result.stdout.strip() == wanted, result.stderr


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("minimum=1.0", "its minimum is 1.0, which is to be a str"),
        ('dtypes="float32"', "its dtypes is 'float32', which is to be a tuple of str"),
        ("dtypes=()", "its dtypes is empty"),
        ('capabilities={"captures"}', "its capabilities is {'captures'}, which is to be a frozenset of Capability"),
        ('guarantees={"threads": "kept"}', "which is to be a mapping of Guarantee to str"),
        (
            "guarantees={__import__('unigrad.protocols').protocols.Guarantee.THREADS: 'okay'}",
            "it says 'okay' of Guarantee.THREADS",
        ),
        ("distribution=3", "its distribution is 3"),
        ("quiet=['LOG']", "its quiet is ['LOG']"),
    ],
)
def test_a3_a_field_of_the_wrong_kind_is_a_row_that_names_it(site, extra, told):
    site.backend("wrong", extra=extra)
    site.module("wrongframe.py")
    result = site.run("from unigrad_conformance.cli import main; main(['backends'])")
    assert result.returncode == 0, result.stderr
    assert told in result.stdout
    assert "numpy" in result.stdout


def test_a3_a_backend_that_is_still_being_written_keeps_no_other_from_work(site):
    """Its modules are there and empty, and it is of a framework that is always imported."""
    site.backend("half", framework="numpy")
    for part in MODULES:
        site.module(f"unigrad_half/{part}.py")
    result = site.run("""
        import unigrad, unigrad.plugins as plugins
        from unigrad_numpy import Parameter
        plugins.get_backend("half")
        unigrad.seed(0)
        print(plugins.backend_of(Parameter([1.0])).spec.name)
        try: plugins.backend_of(object())
        except unigrad.ArgumentTypeError: print("nobody's")
    """)
    assert result.stdout == "numpy\nnobody's\n", result.stderr


def test_a3_a_row_tells_what_is_declared_and_installed_without_importing_it(site):
    site.backend("good", extra="dtypes=('float64',)")
    site.module("goodframe.py", "raise RuntimeError('imported')")
    site.distribution("goodframe", "4.5")
    result = site.run("""
        import unigrad.plugins as p
        row = p.explain("good")
        print(row.status, row.distribution, row.framework, row.version, row.error, *row.dtypes)
    """)
    assert result.stdout == "ready unigrad-good goodframe 4.5 None float64\n", result.stderr


def test_a5_an_order_that_kills_is_refused_before_importing(site):
    site.backend("late", extra="after=('early',)")
    site.module("lateframe.py", "import os; os._exit(9)")
    site.module("early.py")
    kind, text, _ = site.error("late", before="import early")
    assert kind == "BackendImportOrderError"
    assert "'lateframe'" in text
    assert "'early'" in text
    assert "separate processes" in text
    assert site.run("import unigrad.plugins as p; p.get_backend('late')").returncode == 9  # the control: it does kill


def test_a5_a_framework_that_is_already_there_is_not_refused(site):
    site.backend("late", extra="after=('early',)")
    site.module("lateframe.py")
    site.module("early.py")
    result = site.run("import lateframe, early, unigrad.plugins as p; print(p.get_backend('late').spec.name)")
    assert result.stdout == "late\n", result.stderr


def test_a6_an_undeclared_capability_is_refused_by_name():
    parts = dict.fromkeys(MODULES)
    spec = BackendSpec("x", "x", "", "unigrad_x", capabilities=frozenset({Capability.CAPTURES}))
    backend = plugins.LoadedBackend(spec=spec, version="1", **parts)
    backend.require(Capability.CAPTURES)
    with pytest.raises(UnsupportedError) as caught:
        backend.require(Capability.NESTED_CHECKPOINT)
    assert str(caught.value) == "backend 'x' does not support a checkpoint inside a checkpoint"


@pytest.mark.parametrize("name", [3, None, ["numpy"]])
def test_a1_the_name_of_a_backend_is_a_str(name):
    with pytest.raises(ArgumentTypeError, match="is a str"):
        plugins.get_backend(name)


def test_a2_errors_of_the_built_ins_are_of_the_documented_kinds():
    with pytest.raises(BackendNotFoundError, match=r"installed: .*numpy"):
        plugins.get_backend("numpyy")


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_every_function_of_a_built_in_backend_has_the_signature_of_its_protocol(name):
    assert check_interface(plugins.get_backend(name)) == []


def test_the_check_of_signatures_can_fail(site):
    site.backend("stub")
    site.module("stubframe.py")
    site.module("unigrad_stub/rng.py", STUB.format(framework="stubframe") + "def seed(number): ...\nsnapshot = 3")
    result = site.run("""
        import unigrad.plugins as p
        print(*p.check_interface(p.get_backend("stub")), sep="\\n")
    """)
    assert "unigrad_stub.rng.seed takes (number); the protocol says (seed)\n" in result.stdout, result.stderr
    assert "unigrad_stub.rng.snapshot is missing\n" in result.stdout
    assert "unigrad_stub.block.is_model " not in result.stdout


def test_versions_are_ordered_as_the_packaging_standard_does():
    ordered = ["1.13", "2.1.dev3", "2.1a1", "2.1b1", "2.1rc1", "2.1rc2", "2.1", "2.1.post1", "2.1.1", "2.13.0", "1!0.1"]
    keys = [version_key(version) for version in ordered]
    assert None not in keys
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert version_key("2.13") == version_key("2.13.0+cpu") == version_key("v2.13.0")
    assert version_key("unknown") is None

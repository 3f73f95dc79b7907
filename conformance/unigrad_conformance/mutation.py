"""Mutants: faults put into functions of a backend or of the core from outside, described as data."""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import CodeType, FunctionType
from typing import Any

from unigrad.errors import UnigradError
from unigrad_conformance.clauses import CLAUSES

__all__ = [
    "BACKEND",
    "FAMILIES",
    "Edit",
    "Mutant",
    "MutationError",
    "apply",
    "exempt",
    "function_of",
    "load",
    "replaced",
]

BACKEND = "numpy"
"""Backend whose functions are changed: the reference."""
FAMILIES = "GRCMD"
"""First letters of the clauses that have mutants."""
_FOLDER = "mutation_data"
_EXEMPT = "exempt"


class MutationError(UnigradError):
    """A mutant that cannot be put in, or is not described as it should be."""


@dataclass(frozen=True)
class Edit:
    """One change of the text of one function.

    Parameters
    ----------
    target
        ``module:function`` or ``module:Class.method``; a module that begins with a dot is relative to the backend's package.
    old
        Text that stands exactly once in the function.
    new
        What stands there instead; further lines of it are indented like the line in which ``old`` begins.
    """

    target: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """A fault that a test of one clause must find.

    Parameters
    ----------
    name
        Unique name.
    clause
        The clause that it breaks.
    breaks
        What goes wrong, in one sentence.
    test
        Id of a test of that clause that must fail.
    edits
        The changes that make it.
    """

    name: str
    clause: str
    breaks: str
    test: str
    edits: tuple[Edit, ...]


def load() -> dict[str, Mutant]:
    """Return all mutants by name, in the order of the clauses.

    Raises
    ------
    MutationError
        If an entry is incomplete, or names an unknown clause.
    """
    found: dict[str, Mutant] = {}
    for name, entry in ((name, entry) for file in _files().values() for name, entry in file.items()):
        if name == _EXEMPT:
            continue
        if name in found:
            raise MutationError(f"two mutants have the name {name!r}")
        found[name] = _mutant(name, entry)
    order = {clause: number for number, clause in enumerate(CLAUSES)}
    return {mutant.name: mutant for mutant in sorted(found.values(), key=lambda mutant: order[mutant.clause])}


def exempt() -> dict[str, str]:
    """Return the clauses of these families that no mutant breaks, with the reasons."""
    return {clause: reason for file in _files().values() for clause, reason in file.get(_EXEMPT, {}).items()}


def _files() -> dict[str, dict[str, Any]]:
    folder = resources.files(__package__) / _FOLDER
    return {family: tomllib.loads((folder / f"{family}.toml").read_text(encoding="utf-8")) for family in FAMILIES}


def _mutant(name: str, entry: Mapping[str, Any]) -> Mutant:
    try:
        described = {key: entry[key] for key in ("clause", "breaks", "test")}
        edits = tuple(Edit(edit["target"], edit["old"], edit["new"]) for edit in (entry, *entry.get("also", ())))
    except KeyError as error:
        raise MutationError(f"mutant {name!r} lacks {error}") from error
    if described["clause"] not in CLAUSES:
        raise MutationError(f"mutant {name!r} names the unknown clause {described['clause']!r}")
    return Mutant(name, **described, edits=edits)


def apply(mutant: Mutant, package: str) -> None:
    """Put a mutant into this process, all of its edits or none.

    Only the code of the functions is exchanged, so that every reference to them sees the change.

    Parameters
    ----------
    mutant
        What to put in.
    package
        Import name of the backend's package.

    Raises
    ------
    MutationError
        If a target does not exist, or its text is not as the mutant expects.
    """
    functions: dict[str, FunctionType] = {}
    sources: dict[str, str] = {}
    for edit in mutant.edits:
        if edit.target not in functions:
            functions[edit.target] = function_of(edit.target, package)
            sources[edit.target] = textwrap.dedent(inspect.getsource(functions[edit.target]))
        count = sources[edit.target].count(edit.old)
        if not edit.old or count != 1:
            raise MutationError(
                f"mutant {mutant.name!r}: {edit.target} holds {count} times the text {edit.old!r}, not once"
            )
        sources[edit.target] = replaced(sources[edit.target], edit)
    codes = {target: _code(mutant.name, source, functions[target]) for target, source in sources.items()}
    for target, code in codes.items():
        functions[target].__code__ = code


def replaced(source: str, edit: Edit) -> str:
    """Return a source with an edit made, further lines of it indented like the first."""
    before, _, after = source.partition(edit.old)
    line = before.rpartition("\n")[2]
    indent = line[: len(line) - len(line.lstrip())]
    return before + edit.new.replace("\n", f"\n{indent}") + after


def function_of(target: str, package: str) -> FunctionType:
    """Return the function that a target names; ``MutationError`` if there is none."""
    module, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module, package)
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
    except (ImportError, AttributeError) as error:
        raise MutationError(f"the target {target} does not exist: {error}") from error
    if isinstance(found, property):
        found = found.fget
    function = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(function, FunctionType):
        raise MutationError(f"the target {target} is a {type(function).__name__}, not a function")
    return function


def _code(name: str, source: str, function: FunctionType) -> CodeType:
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise MutationError(f"mutant {name!r} is no Python: {error}") from error
    definition = module.body[0]
    if not isinstance(definition, ast.FunctionDef) or len(module.body) != 1:
        raise MutationError(f"mutant {name!r}: {function.__qualname__} is not one plain function any more")
    definition.decorator_list = []  # they have been applied to the function whose code this becomes
    flags = __future__.annotations.compiler_flag
    compiled = compile(module, f"<mutant {name}>", "exec", flags, dont_inherit=True)
    code = next(item for item in compiled.co_consts if isinstance(item, CodeType))
    if code.co_freevars != function.__code__.co_freevars:
        raise MutationError(f"mutant {name!r}: {function.__qualname__} closes over variables, so it can't be exchanged")
    return code

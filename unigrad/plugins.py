"""Backends by name and by object: list, load and explain them, importing only what is asked for.

Names come from the metadata of installed distributions (entry-point group ``unigrad.backends``). One broken plugin
never keeps another from being listed or loaded.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import Any, cast
from weakref import WeakKeyDictionary

import pluggy

from unigrad import hooks
from unigrad.errors import (
    ArgumentTypeError,
    BackendBrokenError,
    BackendConflictError,
    BackendImportOrderError,
    BackendMissingError,
    BackendNotFoundError,
    BackendTooOldError,
    UnigradError,
    UnsupportedError,
)
from unigrad.interface import MODULES, check_interface
from unigrad.protocols import (
    Backend,
    BackendSpec,
    BlockModule,
    Capability,
    CheckpointModule,
    Guarantee,
    MemoryModule,
    OptimizerModule,
    RngModule,
    TapeModule,
)
from unigrad.versions import version_key

__all__ = ["LoadedBackend", "Row", "backend_names", "backend_of", "check_interface", "explain", "get_backend"]

GROUP = "unigrad.backends"
# What unigrad itself imports is in sys.modules whether or not the user works with it.
ALWAYS_IMPORTED = frozenset({"numpy"})


@dataclass(frozen=True, eq=False)
class LoadedBackend:
    """A backend whose framework and modules are imported; see :class:`unigrad.protocols.Backend`."""

    spec: BackendSpec
    version: str
    block: BlockModule = field(repr=False)
    tape: TapeModule = field(repr=False)
    checkpoint: CheckpointModule = field(repr=False)
    rng: RngModule = field(repr=False)
    optimizer: OptimizerModule = field(repr=False)
    memory: MemoryModule = field(repr=False)

    def require(self, capability: Capability) -> None:
        """Raise ``UnsupportedError`` unless the backend declares the capability."""
        if capability not in self.spec.capabilities:
            raise UnsupportedError(f"backend {self.spec.name!r} does not support {capability.value}")


@dataclass(frozen=True)
class Row:
    """What can be said of one declared backend without importing its framework.

    Parameters
    ----------
    name
        Name of the backend.
    distribution
        Distribution (or distributions) that declare it.
    framework
        Import name of its framework; None if the declaration cannot be read.
    version
        Installed version of the framework; None if absent or unknown.
    status
        ``"ready" "missing" "broken" "too old" "conflict" "import order"`` or ``"unknown"``.
    error
        The whole sentence, saying what to do; None if ready.
    capabilities, guarantees, dtypes
        As declared; empty if the declaration cannot be read.
    """

    name: str
    distribution: str
    framework: str | None
    version: str | None
    status: str
    error: str | None = None
    capabilities: frozenset[Capability] = frozenset()
    guarantees: Mapping[Guarantee, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()


_lock = threading.RLock()
_declared: dict[str, BackendSpec] = {}
_loaded: dict[str, LoadedBackend] = {}
_by_type: WeakKeyDictionary[type, LoadedBackend] = WeakKeyDictionary()


def backend_names() -> list[str]:
    """Return the names of all declared backends, sorted; imports nothing.

    Examples
    --------
    >>> "numpy" in backend_names()
    True
    """
    return sorted({entry.name for entry in metadata.entry_points(group=GROUP)})


def get_backend(name: str) -> Backend:
    """Load one backend, and its framework, by name.

    Parameters
    ----------
    name
        One of ``backend_names()``.

    Returns
    -------
    Backend
        The same object on every call.

    Raises
    ------
    BackendNotFoundError, BackendConflictError
        No distribution, or more than one, declares the name.
    BackendMissingError, BackendBrokenError, BackendTooOldError, BackendImportOrderError
        The framework, or the backend itself, cannot be used here; each says what to do.
    """
    loaded = _loaded.get(name) if isinstance(name, str) else None
    if loaded is not None:
        return loaded
    with _lock:
        spec = _declaration(name)
        _refuse_early(spec)
        version = _import_framework(spec)
        modules: dict[str, Any] = {part: _import_part(spec, part) for part in MODULES}
        return _loaded.setdefault(name, LoadedBackend(spec=spec, version=version, **modules))


def backend_of(obj: object) -> Backend:
    """Return the backend of a native model, tensor, optimizer or generator.

    Only frameworks that are already imported are asked: ``obj`` cannot come from another.

    Parameters
    ----------
    obj
        Any object.

    Returns
    -------
    Backend
        The backend that knows it.

    Raises
    ------
    ArgumentTypeError
        No installed backend knows the object.
    BackendUnavailableError
        The object's framework has a backend, which cannot be loaded.
    """
    kind = type(obj)
    known = _by_type.get(kind)
    if known is not None:
        return known
    roots = {base.__module__.partition(".")[0] for base in kind.__mro__}
    failures: list[UnigradError] = []
    for spec, native in _candidates(roots, failures):
        try:
            backend = cast(LoadedBackend, get_backend(spec.name))
        except UnigradError as error:
            if native:
                raise
            failures.append(error)
            continue
        if _knows(backend, obj):
            _by_type[kind] = backend
            return backend
    message = (
        f"no backend knows an object of type '{kind.__module__}.{kind.__qualname__}'; "
        f"installed: {', '.join(backend_names()) or 'none'}"
    )
    if failures:
        raise ArgumentTypeError(f"{message} (not asked: {'; '.join(map(str, failures))})") from failures[0]
    raise ArgumentTypeError(message)


def explain(name: str) -> Row:
    """Describe a backend for a table; imports its declaration but no framework, and never raises.

    Parameters
    ----------
    name
        Name of a backend, installed or not.

    Returns
    -------
    Row
        With the status, and the reason where it is not ready.
    """
    spec = None
    distribution = " and ".join(_distribution(entry) for entry in _entries(name))
    error: UnigradError | None = None
    try:
        spec = _declaration(name)
        _refuse_early(spec)
        if not _is_installed(spec):
            error = _missing(spec)
    except UnigradError as raised:
        error = raised
    if spec is None:
        return Row(name, distribution, None, None, _STATUS[type(error)], str(error))
    return Row(
        name,
        distribution,
        spec.framework,
        _installed_version(spec),
        _STATUS[type(error)],
        None if error is None else str(error),
        spec.capabilities,
        spec.guarantees,
        spec.dtypes,
    )


_STATUS: Mapping[type, str] = {
    type(None): "ready",
    BackendMissingError: "missing",
    BackendBrokenError: "broken",
    BackendTooOldError: "too old",
    BackendConflictError: "conflict",
    BackendImportOrderError: "import order",
    BackendNotFoundError: "unknown",
    ArgumentTypeError: "unknown",
}


def _entries(name: str) -> list[metadata.EntryPoint]:
    return list(metadata.entry_points(group=GROUP, name=name))


def _distribution(entry: metadata.EntryPoint) -> str:
    return "an unnamed distribution" if entry.dist is None else entry.dist.name


def _declaration(name: str) -> BackendSpec:
    """Return the specification of a backend, importing the declaring package but no framework."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of a backend is a str; got {type(name).__name__}")
    entries = _entries(name)
    if not entries:
        raise BackendNotFoundError(f"no backend named {name!r}; installed: {', '.join(backend_names()) or 'none'}")
    if len(entries) > 1:  # pluggy would take the first in silence
        count = "two" if len(entries) == 2 else str(len(entries))
        rivals = " and ".join(f"{_distribution(entry)} ({entry.value})" for entry in entries)
        raise BackendConflictError(f"{count} distributions declare backend {name!r}: {rivals}; uninstall one")
    with _lock:
        if name not in _declared:
            _declared[name] = _read_declaration(name, entries[0])
        return _declared[name]


def _read_declaration(name: str, entry: metadata.EntryPoint) -> BackendSpec:
    manager = pluggy.PluginManager("unigrad")  # one for each backend: a faulty one leaves nothing behind
    manager.add_hookspecs(hooks)
    where = f"backend {name!r} of distribution {_distribution(entry)} is broken"
    try:
        manager.load_setuptools_entrypoints(GROUP, name=name)
        manager.check_pending()
        specs = manager.hook.unigrad_backend()
    except (Exception, SystemExit) as error:
        raise BackendBrokenError(
            f"{where}: its package {entry.value!r} does not import or declare: {_cause(error)}. "
            f"Reinstall, upgrade or uninstall {_distribution(entry)}"
        ) from error
    if len(specs) != 1 or not isinstance(specs[0], BackendSpec):
        raise BackendBrokenError(
            f"{where}: {entry.value!r} must hold one @hookimpl unigrad_backend() that returns a BackendSpec"
        )
    spec = specs[0]
    if spec.name != name:
        raise BackendBrokenError(f"{where}: {entry.value!r} declares the name {spec.name!r}")
    if version_key(spec.minimum) is None:
        raise BackendBrokenError(f"{where}: its minimum {spec.minimum!r} is not a version")
    return spec


def _refuse_early(spec: BackendSpec) -> None:
    """Raise for everything that can be known to fail before the framework is imported."""
    if spec.framework not in sys.modules:
        earlier = [framework for framework in spec.after if framework in sys.modules]
        if earlier:
            raise BackendImportOrderError(
                f"backend {spec.name!r} needs {spec.framework!r}, and importing it after {earlier[0]!r}, "
                f"which is already imported, is known to kill the process; use separate processes"
            )
    version = _installed_version(spec)
    if version is not None:
        _refuse_old(spec, version)


def _refuse_old(spec: BackendSpec, version: str) -> None:
    found, wanted = version_key(version), version_key(spec.minimum)
    # A version that cannot be read (a build from source may carry any text) cannot be called too old.
    if found is not None and wanted is not None and found < wanted:
        raise BackendTooOldError(
            f"backend {spec.name!r} needs {spec.framework} >= {spec.minimum}; found {version}. "
            f"Upgrade it with: {spec.install}"
        )


def _missing(spec: BackendSpec) -> BackendMissingError:
    return BackendMissingError(
        f"backend {spec.name!r} needs {spec.framework!r}, which is not installed. Install it with: {spec.install}"
    )


def _import_framework(spec: BackendSpec) -> str:
    """Import the framework and return its version."""
    try:
        module = importlib.import_module(spec.framework)
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{spec.framework}.".startswith(f"{absent}."):
            raise _missing(spec) from error
        raise BackendBrokenError(
            f"backend {spec.name!r} needs {spec.framework!r}, which is installed but does not import: {_cause(error)}. "
            f"Repair it until this runs: python -c 'import {spec.framework}'"
        ) from error
    version = getattr(module, "__version__", None) or _installed_version(spec)
    if version is None:
        return "unknown"
    _refuse_old(spec, str(version))
    return str(version)


def _import_part(spec: BackendSpec, part: str) -> Any:
    try:
        return importlib.import_module(f"{spec.package}.{part}")
    except (Exception, SystemExit) as error:
        raise BackendBrokenError(
            f"backend {spec.name!r} is broken: its module {spec.package}.{part} does not import: {_cause(error)}. "
            f"Reinstall or upgrade the distribution that holds {spec.package}"
        ) from error


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _root(spec: BackendSpec) -> str:
    return spec.framework.partition(".")[0]


def _is_installed(spec: BackendSpec) -> bool:
    # Only the top package is looked for: looking for a submodule would import its parents.
    root = _root(spec)
    return root in sys.modules or find_spec(root) is not None


def _installed_version(spec: BackendSpec) -> str | None:
    """Return the version of the framework without importing it, or None."""
    for distribution in (spec.distribution, _root(spec)):
        try:
            if distribution:
                return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    version = getattr(sys.modules.get(_root(spec)), "__version__", None)
    if version is None and _is_installed(spec):
        for distribution in metadata.packages_distributions().get(_root(spec), ()):
            return metadata.version(distribution)
    return None if version is None else str(version)


def _candidates(roots: set[str], failures: list[UnigradError]) -> Iterator[tuple[BackendSpec, bool]]:
    """Yield backends that may own an object, those whose own packages its classes come from first.

    The flag tells those first ones apart. What cannot be read is appended to ``failures``.
    """
    others = []
    for name in backend_names():
        try:
            spec = _loaded[name].spec if name in _loaded else _declaration(name)
        except UnigradError as error:
            failures.append(error)
            continue
        if not _in_use(spec):
            continue
        if spec.package in roots or _root(spec) in roots - ALWAYS_IMPORTED:
            yield spec, True
        else:
            others.append(spec)
    for spec in others:
        yield spec, False


def _in_use(spec: BackendSpec) -> bool:
    if spec.framework in ALWAYS_IMPORTED:
        return any(module.startswith(f"{spec.package}.") for module in list(sys.modules))
    return spec.framework in sys.modules


def _knows(backend: LoadedBackend, obj: object) -> bool:
    return (
        backend.block.is_model(obj)
        or backend.block.is_tensor(obj)
        or backend.optimizer.is_optimizer(obj)
        or backend.rng.is_generator(obj)
    )

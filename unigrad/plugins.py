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
from typing import Any, cast
from weakref import WeakKeyDictionary

from unigrad.declarations import (
    backend_names,
    cause,
    declaration,
    distribution_of,
    entries,
    installed_version,
    is_installed,
    missing,
    refuse_early,
    refuse_old,
    root,
)
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
    ArraysModule,
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

__all__ = [
    "LoadedBackend",
    "Row",
    "backend_names",
    "backend_of",
    "backends_in_use",
    "check_interface",
    "explain",
    "get_backend",
]

# What unigrad itself imports is in sys.modules whether or not the user works with it.
ALWAYS_IMPORTED = frozenset({"numpy"})


@dataclass(frozen=True, eq=False)
class LoadedBackend:
    """A backend whose framework and modules are imported; see :class:`unigrad.protocols.Backend`."""

    spec: BackendSpec
    version: str
    block: BlockModule = field(repr=False)
    arrays: ArraysModule = field(repr=False)
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
_loaded: dict[str, LoadedBackend] = {}
_by_type: WeakKeyDictionary[type, LoadedBackend] = WeakKeyDictionary()


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
        spec = declaration(name)
        refuse_early(spec)
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
    BackendConflictError
        Two backends know the object.
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
            _refuse_rivals(backend, obj)
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
    distribution = " and ".join(map(distribution_of, entries(name)))
    error: UnigradError | None = None
    try:
        spec = declaration(name)
        refuse_early(spec)
        if not is_installed(spec):
            error = missing(spec)
    except UnigradError as raised:
        error = raised
    if spec is None:
        return Row(name, distribution, None, None, _STATUS.get(type(error), "broken"), str(error))
    return Row(
        name,
        distribution,
        spec.framework,
        installed_version(spec),
        _STATUS.get(type(error), "broken"),
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


def _import_framework(spec: BackendSpec) -> str:
    """Import the framework and return its version."""
    try:
        module = importlib.import_module(spec.framework)
    except (Exception, SystemExit) as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{spec.framework}.".startswith(f"{absent}."):
            raise missing(spec) from error
        raise BackendBrokenError(
            f"backend {spec.name!r} needs {spec.framework!r}, which is installed but does not import: {cause(error)}. "
            f"Repair it until this runs: python -c 'import {spec.framework}'"
        ) from error
    version = getattr(module, "__version__", None) or installed_version(spec)
    if version is None:
        return "unknown"
    refuse_old(spec, str(version))
    return str(version)


def _import_part(spec: BackendSpec, part: str) -> Any:
    try:
        return importlib.import_module(f"{spec.package}.{part}")
    except (Exception, SystemExit) as error:
        raise BackendBrokenError(
            f"backend {spec.name!r} is broken: its module {spec.package}.{part} does not import: {cause(error)}. "
            f"Reinstall or upgrade the distribution that holds {spec.package}"
        ) from error


def _candidates(roots: set[str], failures: list[UnigradError]) -> Iterator[tuple[BackendSpec, bool]]:
    """Yield backends that may own an object, those whose own packages its classes come from first.

    The flag tells those first ones apart. What cannot be read is appended to ``failures``.
    """
    others = []
    for name in backend_names():
        try:
            spec = _loaded[name].spec if name in _loaded else declaration(name)
        except UnigradError as error:
            failures.append(error)
            continue
        if not _in_use(spec):
            continue
        if spec.package in roots or root(spec) in roots - ALWAYS_IMPORTED:
            yield spec, True
        else:
            others.append(spec)
    for spec in others:
        yield spec, False


def _in_use(spec: BackendSpec) -> bool:
    if spec.framework in ALWAYS_IMPORTED:
        return any(module.startswith(f"{spec.package}.") for module in list(sys.modules))
    return spec.framework in sys.modules


def _refuse_rivals(backend: LoadedBackend, obj: object) -> None:
    """Raise if another backend of the same framework knows the object: which one serves it would depend on their names."""
    own = backend.spec
    for name in backend_names():
        try:
            spec = declaration(name)
            if name == own.name or spec.framework != own.framework or not _in_use(spec):
                continue
            rival = cast(LoadedBackend, get_backend(name))
        except UnigradError:
            continue
        if _knows(rival, obj):
            raise BackendConflictError(
                f"two backends serve objects of {own.framework!r}: {own.name!r} ({own.package}) and {name!r} ({spec.package}); "
                "uninstall one"
            )


_ASKED = (("block", "is_model"), ("arrays", "is_tensor"), ("optimizer", "is_optimizer"), ("rng", "is_generator"))


def _knows(backend: LoadedBackend, obj: object) -> bool:
    # One that is still being written may lack some of them, which is no reason to fail for objects of others.
    functions = (getattr(getattr(backend, part), name, None) for part, name in _ASKED)
    return any(function is not None and function(obj) for function in functions)


def loaded_frameworks() -> set[str]:
    """Return the import names of the frameworks whose backends are loaded; looks nothing up."""
    return {backend.spec.framework for backend in list(_loaded.values())}


def backends_in_use() -> list[Backend]:
    """Return the backends whose frameworks are imported and which can be loaded, the reference among them.

    A broken one, or one that is still being written, must not keep the others from being seeded.
    """
    found = []
    for name in backend_names():
        try:
            spec = _loaded[name].spec if name in _loaded else declaration(name)
            if spec.framework in sys.modules:
                backend = get_backend(name)
                if hasattr(backend.rng, "seed"):
                    found.append(backend)
        except UnigradError:
            continue
    return found

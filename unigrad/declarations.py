"""What installed distributions declare, and whether the framework can be used; imports no framework."""

from __future__ import annotations

import sys
import threading
from importlib import metadata
from importlib.util import find_spec

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
)
from unigrad.fields import faults_of
from unigrad.protocols import BackendSpec
from unigrad.versions import version_key

__all__ = [
    "GROUP",
    "backend_names",
    "cause",
    "declaration",
    "distribution_of",
    "entries",
    "installed_version",
    "is_installed",
    "missing",
    "refuse_early",
    "refuse_old",
    "root",
]

GROUP = "unigrad.backends"

_lock = threading.Lock()
_declared: dict[str, BackendSpec] = {}


def backend_names() -> list[str]:
    """Return the names of all declared backends, sorted; imports nothing.

    Examples
    --------
    >>> "numpy" in backend_names()
    True
    """
    return sorted({entry.name for entry in metadata.entry_points(group=GROUP)})


def entries(name: str) -> list[metadata.EntryPoint]:
    """Return every entry point that declares the name, one a distribution."""
    return list(metadata.entry_points(group=GROUP, name=name))


def distribution_of(entry: metadata.EntryPoint) -> str:
    """Return the name of the distribution to which an entry point belongs."""
    return "an unnamed distribution" if entry.dist is None else entry.dist.name


def declaration(name: str) -> BackendSpec:
    """Return the specification of a backend, importing the declaring package but no framework."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of a backend is a str; got {type(name).__name__}")
    found = entries(name)
    if not found:
        raise BackendNotFoundError(f"no backend named {name!r}; installed: {', '.join(backend_names()) or 'none'}")
    if len(found) > 1:  # pluggy would take the first in silence
        count = "two" if len(found) == 2 else str(len(found))
        rivals = " and ".join(f"{distribution_of(entry)} ({entry.value})" for entry in found)
        raise BackendConflictError(f"{count} distributions declare backend {name!r}: {rivals}; uninstall one")
    with _lock:
        if name not in _declared:
            _declared[name] = _read(name, found[0])
        return _declared[name]


def _read(name: str, entry: metadata.EntryPoint) -> BackendSpec:
    manager = pluggy.PluginManager("unigrad")  # one for each backend: a faulty one leaves nothing behind
    manager.add_hookspecs(hooks)
    where = f"backend {name!r} of distribution {distribution_of(entry)} is broken"
    try:
        manager.load_setuptools_entrypoints(GROUP, name=name)
        manager.check_pending()
        specs = manager.hook.unigrad_backend()
    except (Exception, SystemExit) as error:
        raise BackendBrokenError(
            f"{where}: its package {entry.value!r} does not import or declare: {cause(error)}. "
            f"Reinstall, upgrade or uninstall {distribution_of(entry)}"
        ) from error
    if len(specs) != 1 or not isinstance(specs[0], BackendSpec):
        raise BackendBrokenError(
            f"{where}: {entry.value!r} must hold one @hookimpl unigrad_backend() that returns a BackendSpec"
        )
    spec = specs[0]
    faults = list(faults_of(spec))
    if faults:
        raise BackendBrokenError(f"{where}: in {entry.value!r}, {'; '.join(faults)}")
    if spec.name != name:
        raise BackendBrokenError(f"{where}: {entry.value!r} declares the name {spec.name!r}")
    if version_key(spec.minimum) is None:
        raise BackendBrokenError(f"{where}: its minimum {spec.minimum!r} is not a version")
    return spec


def refuse_early(spec: BackendSpec) -> None:
    """Raise for everything that can be known to fail before the framework is imported."""
    if spec.framework not in sys.modules:
        earlier = [framework for framework in spec.after if framework in sys.modules]
        if earlier:
            raise BackendImportOrderError(
                f"backend {spec.name!r} needs {spec.framework!r}, and importing it after {earlier[0]!r}, "
                f"which is already imported, is known to kill the process; use separate processes"
            )
    version = installed_version(spec)
    if version is not None:
        refuse_old(spec, version)


def refuse_old(spec: BackendSpec, version: str) -> None:
    """Raise ``BackendTooOldError`` if the version is below the declared minimum."""
    found, wanted = version_key(version), version_key(spec.minimum)
    # A version that cannot be read (a build from source may carry any text) cannot be called too old.
    if found is not None and wanted is not None and found < wanted:
        raise BackendTooOldError(
            f"backend {spec.name!r} needs {spec.framework} >= {spec.minimum}; found {version}. "
            f"Upgrade it with: {spec.install}"
        )


def missing(spec: BackendSpec) -> BackendMissingError:
    """Return the error for a framework that is not installed."""
    return BackendMissingError(
        f"backend {spec.name!r} needs {spec.framework!r}, which is not installed. Install it with: {spec.install}"
    )


def cause(error: BaseException) -> str:
    """Return an exception as it stands in a message."""
    return f"{type(error).__name__}: {error}"


def root(spec: BackendSpec) -> str:
    """Return the top package of the framework."""
    return spec.framework.partition(".")[0]


def is_installed(spec: BackendSpec) -> bool:
    """Whether the framework can be found, by its top package: finding a submodule would import its parents."""
    top = root(spec)
    return top in sys.modules or find_spec(top) is not None


def installed_version(spec: BackendSpec) -> str | None:
    """Return the version of the framework without importing it, or None."""
    for distribution in (spec.distribution, root(spec)):
        try:
            if distribution:
                return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    version = getattr(sys.modules.get(root(spec)), "__version__", None)
    if version is None and is_installed(spec):
        for distribution in metadata.packages_distributions().get(root(spec), ()):
            return metadata.version(distribution)
    return None if version is None else str(version)

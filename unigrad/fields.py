"""Whether the fields of a declaration hold what they are to hold; a wrong one is told by name before anything uses it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from unigrad import errors
from unigrad.protocols import BackendSpec, Capability, Guarantee

__all__ = ["faults_of"]

_TEXTS = ("name", "framework", "install", "package", "minimum")
_LISTS = ("dtypes", "after", "random_sources")


def faults_of(spec: BackendSpec) -> Iterator[str]:
    """Yield one sentence for each field of a specification with a value that means nothing.

    Parameters
    ----------
    spec
        As the hook of a backend returned it.
    """
    for field in _TEXTS:
        value = getattr(spec, field)
        if not isinstance(value, str) or not value:
            yield f"its {field} is {value!r}, which is to be a str"
    if not isinstance(spec.distribution, str | None):
        yield f"its distribution is {spec.distribution!r}, which is to be a str or None"
    for field in _LISTS:
        value = getattr(spec, field)
        if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
            yield f"its {field} is {value!r}, which is to be a tuple of str"
    if not spec.dtypes:
        yield "its dtypes is empty; the first one is the default"
    yield from _of_capabilities(spec.capabilities)
    yield from _of_guarantees(spec.guarantees)
    quiet: Any = spec.quiet
    if not isinstance(quiet, Mapping) or not all(isinstance(item, str) for pair in quiet.items() for item in pair):
        yield f"its quiet is {quiet!r}, which is to be a mapping of str to str"


def _of_capabilities(value: Any) -> Iterator[str]:
    if isinstance(value, str) or not isinstance(value, Collection) or not all(isinstance(i, Capability) for i in value):
        yield f"its capabilities is {value!r}, which is to be a frozenset of Capability"


def _of_guarantees(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping) or not all(isinstance(key, Guarantee) for key in value):
        yield f"its guarantees is {value!r}, which is to be a mapping of Guarantee to str"
        return
    for key, stated in value.items():
        kind = getattr(errors, stated, None) if isinstance(stated, str) else None
        is_error = isinstance(kind, type) and issubclass(kind, errors.UnigradError)
        if stated not in ("kept", "undetected") and not is_error:
            yield (
                f"it says {stated!r} of Guarantee.{key.name}, which is to be 'kept', 'undetected' or the name of a class in unigrad.errors"
            )

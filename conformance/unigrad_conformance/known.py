"""Known failures of a backend: the file ``known_failures.toml`` in its package."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources

__all__ = ["KnownFailure", "check_all_match", "load"]

FILE = "known_failures.toml"


@dataclass(frozen=True)
class KnownFailure:
    """Why a test of the suite fails on a backend, and where that is reported upstream."""

    reason: str
    url: str


def load(package: str) -> dict[str, KnownFailure]:
    """Read the known failures of the backend in ``package``; none if it has no such file.

    Raises
    ------
    ValueError
        For a file that is not TOML, or an entry without exactly a reason and a url.
    """
    file = resources.files(package) / FILE
    if not file.is_file():
        return {}
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{package}/{FILE} is not a TOML file: {error}") from error
    for test, entry in entries.items():
        texts = isinstance(entry, dict) and all(isinstance(text, str) and text.strip() for text in entry.values())
        if not texts or set(entry) != {"reason", "url"}:
            raise ValueError(f"{package}/{FILE}: {test!r} needs exactly a reason and a url, both texts")
    return {test: KnownFailure(**entry) for test, entry in entries.items()}


def check_all_match(failures: Mapping[str, KnownFailure], tests: Iterable[str], package: str) -> None:
    """Raise ``ValueError`` for known failures whose id matches no test."""
    stale = sorted(set(failures) - set(tests))
    if stale:
        raise ValueError(f"{package}/{FILE} names tests that do not exist: {', '.join(stale)}")

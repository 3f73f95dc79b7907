"""Match structural names against patterns."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from unigrad.errors import ArgumentError, ArgumentTypeError

__all__ = ["explain_no_match", "matches", "patterns_of"]


def matches(name: str, pattern: str) -> bool:
    """Whether a name, or the path of a layer above it, fits a pattern.

    Parameters
    ----------
    name
        Structural name, e.g. ``encoder.0.weight``.
    pattern
        Shell-style pattern; ``*`` also spans dots. ``encoder`` fits everything below the layer ``encoder``.

    Returns
    -------
    bool
        Whether it fits.

    Examples
    --------
    >>> matches("encoder.0.weight", "encoder"), matches("encoder.0.weight", "*.weight"), matches("encoder2.bias", "encoder")
    (True, True, False)
    """
    if fnmatchcase(name, pattern):
        return True
    end = name.find(".")
    while end >= 0:
        if fnmatchcase(name[:end], pattern):
            return True
        end = name.find(".", end + 1)
    return False


def patterns_of(patterns: object, argument: str) -> tuple[str, ...]:
    """Return patterns given as one string or several as a tuple; ``ArgumentTypeError`` for anything else."""
    if isinstance(patterns, str):
        return (patterns,)
    if isinstance(patterns, Iterable):
        listed = tuple(patterns)
        if all(isinstance(item, str) for item in listed):
            return listed
    raise ArgumentTypeError(f"{argument} takes a pattern or several of names, not {patterns!r}")


def explain_no_match(pattern: str, names: Iterable[str], action: str) -> ArgumentError:
    """Return the error for a pattern that fits no name, with the nearest names."""
    known = list(names)
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4) or known[:5]
    shown = ", ".join(near) + (", ..." if len(known) > len(near) else "")
    hint = f"; near it: {shown}" if near else "; the block has no parameters or buffers"
    return ArgumentError(f"pattern {pattern!r} {action} nothing{hint}")

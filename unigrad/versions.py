"""Order of version numbers, as far as telling "too old" needs it.

Kept apart from the ``packaging`` distribution so that the base installation stays at three dependencies.
"""

from __future__ import annotations

import re

__all__ = ["version_key"]

_VERSION = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|rc|c)[-_.]?(?P<number>\d*))?"
    r"(?P<post>-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_PHASES = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "pre": 3, "preview": 3}
_FINAL = 4


def version_key(version: str) -> tuple[int, tuple[int, ...], int, int] | None:
    """Return a key that orders versions as the packaging standard does, local builds set equal.

    Parameters
    ----------
    version
        E.g. ``"2.13.0+cpu"``, ``"2.14.0a0+git1f2e"``, ``"2.13.0rc1"``.

    Returns
    -------
    tuple or None
        Epoch, release without trailing zeros, phase (development, alpha, beta, candidate, final, post) and number
        of the phase; None for text that is not a version.

    Examples
    --------
    >>> version_key("2.13.0rc1") < version_key("2.13") == version_key("2.13.0+cpu") < version_key("2.14.0.dev3")
    True
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    if match["pre"]:
        phase, number = _PHASES[match["pre"].lower()], int(match["number"] or 0)
    elif match["post"]:
        phase, number = _FINAL + 1, int(re.sub(r"\D", "", match["post"]) or 0)
    elif match["dev"]:
        phase, number = 0, int(match["dev_number"] or 0)
    else:
        phase, number = _FINAL, 0
    return int(match["epoch"] or 0), tuple(release), phase, number

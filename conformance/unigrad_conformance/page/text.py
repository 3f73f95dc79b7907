"""Texts of results made fit for a page: nothing invisible, no link that runs a program, numbers and times as read."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

__all__ = ["count", "finalize", "link", "seconds", "shorten", "slug", "visible"]

# Control characters, marks that reverse the direction of writing, and halves of surrogate pairs.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """Return the text with each character that cannot be seen written as its code."""
    return _INVISIBLE.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text
    )


def finalize(value: Any) -> Any:
    """Make every text that a template puts out visible; what is markup already stays as it is."""
    return visible(value) if type(value) is str else value


def link(url: str) -> str:
    """Return a web address as it is, and an empty text for anything else, such as ``javascript:``."""
    if url != visible(url) or re.search(r"\s", url):
        return ""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in ("http", "https") and parts.netloc else ""


def slug(text: str) -> str:
    """Return a text that may stand in an ``id``; other characters become their codes."""
    return re.sub(r"[^\w.-]", lambda found: f"~{ord(found[0]):x}", text, flags=re.ASCII)


def count(number: int) -> str:
    """Return a number with its thousands set apart."""
    return f"{number:,}"


def seconds(duration_s: float) -> str:
    """Return a time with the unit that suits it."""
    if duration_s < 0.0005:
        return "0 ms"
    if duration_s < 0.9995:
        return f"{duration_s * 1000:.0f} ms"
    if duration_s < 120:
        return f"{duration_s:.1f} s"
    return f"{duration_s / 60:.1f} min"


def shorten(text: str, most: int) -> str:
    """Return a long text without its middle, and say how much is left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"

"""The HTML page of a check: one self-contained file, made from results alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unigrad_conformance.page.model import page_of
from unigrad_conformance.page.text import count, finalize, link, seconds, slug
from unigrad_conformance.results import Session

__all__ = ["html_page"]


def html_page(sessions: Sequence[Session]) -> str:
    """Return the page of a check.

    Parameters
    ----------
    sessions
        What was checked, in the order of the columns.

    Returns
    -------
    str
        HTML that loads nothing: style and script stand inside, and its policy allows these two and nothing else. The
        same sessions give the same text. All text of the sessions is escaped.
    """
    environment = Environment(
        loader=PackageLoader(__name__),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"count": count, "seconds": seconds, "link": link, "slug": slug}
    style, script = _packaged("page.css"), _packaged("page.js")
    return environment.get_template("page.html.j2").render(
        page=page_of(sessions),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
    )


def _packaged(name: str) -> str:
    return (resources.files(__name__) / "templates" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy that allows one style and one script, known by their hashes."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )

"""The results of a check as JUnit XML, for the servers and editors that read it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from unigrad_conformance.compare import Agreement, Difference, agreements
from unigrad_conformance.report import command
from unigrad_conformance.results import Result, Session

__all__ = ["junit_xml"]

_PROPERTIES = ("framework", "framework_version", "python", "platform", "unigrad_version")
# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Case:
    """One element ``testcase``; ``kind`` is ``failure``, ``error``, ``skipped``, or empty for what passed."""

    file: str
    name: str
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    details: str = ""


def junit_xml(sessions: Sequence[Session]) -> str:
    """Return one test suite per backend; a check that exits with 1 has a failure or an error in one of them.

    A broken promise or a sample that is missing is a failure; a test in which the process ended, one that did not run,
    and a session that did not end well are errors; what is refused or known to fail is skipped; a disagreement with the
    reference is a failure of a case of its own.
    """
    compared = {agreement.backend: agreement for agreement in agreements(sessions)}
    root = ET.Element("testsuites", name="unigrad check")
    for session in sessions:
        root.append(_suite(session, list(_cases(session, compared.get(session.backend)))))
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, 0)) for suite in root)))
    root.set("time", f"{sum(session.duration_s for session in sessions):.3f}")
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _suite(session: Session, cases: Sequence[_Case]) -> ET.Element:
    kinds = [case.kind for case in cases]
    counts = {
        "tests": len(cases),
        "failures": kinds.count("failure"),
        "errors": kinds.count("error"),
        "skipped": kinds.count("skipped"),
    }
    suite = ET.Element("testsuite", name=f"unigrad.{session.backend}")
    for key, count in counts.items():
        suite.set(key, str(count))
    suite.set("time", f"{session.duration_s:.3f}")
    properties = ET.SubElement(suite, "properties")
    for name in _PROPERTIES:
        ET.SubElement(properties, "property", name=name, value=_plain(getattr(session, name)))
    for case in cases:
        element = ET.SubElement(suite, "testcase", classname=_plain(f"unigrad.{session.backend}.{case.file}"))
        element.set("name", _plain(case.name))
        element.set("time", f"{case.seconds:.3f}")
        if case.kind:
            outcome = ET.SubElement(element, case.kind, message=_plain(case.message))
            if case.kind != "skipped":
                outcome.set("type", case.kind)
            outcome.text = _plain(case.details)
    return suite


def _cases(session: Session, agreement: Agreement | None) -> Iterator[_Case]:
    if session.status != "complete":
        yield _Case("session", session.status, 0.0, "error", session.message.partition("\n")[0], session.message)
    for result in session.results:
        yield _case(session, result)
    for difference in agreement.faults if agreement is not None else ():
        yield _difference(difference)


def _case(session: Session, result: Result) -> _Case:
    kind, message, details = "", result.reason, ""
    if result.is_bad:
        kind = "error" if result.ending or not result.ran else "failure"
        details = f"{result.reason}\n{result.details}\nrun it alone: {command(session, result)}"
        details = f"clauses: {', '.join(result.clauses)}\n{details}"
    elif result.outcome != "passed":
        kind, message = "skipped", f"{result.outcome}: {result.reason} {result.url}".strip()
    file, _, name = result.id.partition("::")
    message = message.partition("\n")[0]
    return _Case(file.removesuffix(".py"), name or file, result.duration_s, kind, message, details)


def _difference(difference: Difference) -> _Case:
    found = difference.comparison
    message = f"differs from the reference: {found.label} {found.where}".strip()
    details = f"largest difference {found.size:.3g}, bound {found.bound:.3g}, because: {difference.reason}"
    return _Case("agreement", f"{difference.test} {difference.name}", 0.0, "failure", message, details)


def _plain(text: str) -> str:
    r"""Return the text with what XML cannot hold written out, as ``\x1b``."""
    return _FORBIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)

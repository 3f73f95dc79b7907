"""The pytest plugin of the suite: options, marks, expected outcomes and the log of results.

Given to pytest by ``-p unigrad_conformance.plugin``; ``unigrad check`` does so in processes of their own.
"""

from __future__ import annotations

import platform
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import unigrad
from unigrad.errors import UnigradError, UnsupportedError
from unigrad.protocols import Backend, BackendSpec, Capability
from unigrad.samples import NoSampleError
from unigrad_conformance import fixtures, known, quiet
from unigrad_conformance.clauses import CLAUSES
from unigrad_conformance.events import EventLog
from unigrad_conformance.fixtures import BACKEND, OBSERVED
from unigrad_conformance.processes import die_with_parent, number_children

pytest.register_assert_rewrite("unigrad_conformance.suite")

_MARKS = (
    "clause(*names): the clauses of the contract that the test checks, e.g. 'G1'; every test has one",
    "needs(*capabilities): undeclared, the test must raise UnsupportedError",
    "case(*numbers): cases of the list of real faults",
    "dtypes(*names): dtypes for the fixture 'dtype'; default: all that the backend declares",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("unigrad")
    group.addoption("--unigrad-backend", metavar="NAME", help="backend under test")
    group.addoption("--unigrad-events", metavar="FD", type=int, help="tell results through this file descriptor")
    group.addoption("--unigrad-remaining", metavar="FILE", help="run only the tests whose ids stand in this file")
    group.addoption("--unigrad-select", metavar="WHAT", help="one test id, exactly, or the tests of clauses, as G1,C4")


def pytest_configure(config: pytest.Config) -> None:
    """Load the backend and open the log."""
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    name = config.getoption("--unigrad-backend")
    if name is None:
        raise pytest.UsageError("the conformance suite needs --unigrad-backend=NAME")
    pipe = config.getoption("--unigrad-events")
    if pipe is not None:
        die_with_parent()
    log = EventLog(pipe)
    try:
        backend = quiet.load(name)
    except UnigradError as error:
        log.write("unavailable", error=type(error).__name__, message=str(error))
        raise pytest.UsageError(str(error)) from error
    config.stash[BACKEND] = backend
    log.write("session", **_describe(backend))
    config.pluginmanager.register(fixtures, "unigrad-fixtures")
    config.pluginmanager.register(Outcomes(backend, log), "unigrad-outcomes")


def _describe(backend: Backend) -> dict[str, Any]:
    spec = backend.spec
    return {
        "backend": spec.name,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "framework": spec.framework,
        "framework_version": backend.version,
        "unigrad_version": unigrad.__version__,
        "capabilities": sorted(capability.name for capability in spec.capabilities),
        "guarantees": {guarantee.name: text for guarantee, text in spec.guarantees.items()},
        "dtypes": list(spec.dtypes),
    }


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is tested."""
    backend = config.stash.get(BACKEND, None)
    if backend is None:
        return []
    names = ", ".join(sorted(capability.name for capability in backend.spec.capabilities)) or "none"
    return [
        f"unigrad backend: {backend.spec.name}, {backend.spec.framework} {backend.version}",
        f"unigrad capabilities: {names}",
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for ``dtype`` once per dtype; an undeclared one must be refused."""
    if "dtype" not in metafunc.fixturenames:
        return
    declared = metafunc.config.stash[BACKEND].spec.dtypes
    mark = metafunc.definition.get_closest_marker("dtypes")
    wanted: tuple[str, ...] = declared if mark is None else mark.args
    metafunc.parametrize(
        "dtype",
        [
            pytest.param(name, id=name, marks=() if name in declared else _refusal(f"dtype {name}: not declared"))
            for name in wanted
        ],
    )


def _refusal(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(raises=UnsupportedError, strict=True, reason=reason)


class Outcomes:
    """Hooks of one session: what each test is expected to do, and what it did.

    Parameters
    ----------
    backend
        The backend under test.
    log
        Takes the events.
    """

    def __init__(self, backend: Backend, log: EventLog) -> None:
        self._spec: BackendSpec = backend.spec
        self._log = log
        self._ids: dict[pytest.Item, str] = {}
        self._by_node: dict[str, str] = {}
        self._known: dict[str, known.KnownFailure] = {}
        self._verdicts: dict[pytest.Item, tuple[str, str, str]] = {}
        self._seconds: dict[pytest.Item, float] = {}
        self._number = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Check marks and known failures, and set what is expected of each test."""
        try:
            self._expect(items)
        except (ValueError, OSError) as error:
            self._log.write("error", message=str(error))
            raise pytest.UsageError(str(error)) from error
        wanted = config.getoption("--unigrad-select")
        if wanted is not None:
            names = set(wanted.split(","))
            chosen = [item for item in items if wanted == self._ids[item] or names.intersection(_clauses(item))]
            config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
            items[:] = chosen
        remaining = config.getoption("--unigrad-remaining")
        if remaining is not None:
            ids = set(Path(remaining).read_text(encoding="utf-8").splitlines())
            items[:] = [item for item in items if self._ids[item] in ids]

    def _expect(self, items: list[pytest.Item]) -> None:
        self._known = known.load(self._spec.package)
        for item in items:
            test = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
            self._ids[item] = self._by_node[item.nodeid] = test
            _check_clauses(test, _clauses(item))
            for capability in _needs(test, item):
                if capability not in self._spec.capabilities:
                    item.add_marker(_refusal(f"{capability.value}: not declared"))
            if test in self._known:
                item.add_marker(pytest.mark.xfail(strict=True, reason=self._known[test].reason), append=False)
        known.check_all_match(self._known, self._ids.values(), self._spec.package)
        if len(set(self._ids.values())) != len(items):
            raise ValueError("two files of the suite have one name")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Log the tests that will run."""
        self._log.write(
            "collected",
            known=len(self._ids),
            tests=[
                {
                    "id": self._ids[item],
                    "clauses": _clauses(item),
                    "cases": [number for mark in item.iter_markers("case") for number in mark.args],
                    "needs": [capability.name for capability in _needs("", item)],
                    "mandatory": self._is_mandatory(item),
                }
                for item in session.items
            ],
        )

    def _is_mandatory(self, item: pytest.Item) -> bool:
        # A guarantee may speak of something that a framework has no means to do, such as a hidden write.
        declared = all(capability in self._spec.capabilities for capability in _needs("", item))
        return declared and "guarantee" not in getattr(item, "fixturenames", ())

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Log a test file that cannot be collected."""
        if report.failed:
            self._log.write("error", message=f"cannot collect {report.nodeid}:\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Log the start, so that the test a process dies in is known."""
        self._number += 1
        number_children(self._number)
        self._log.write("start", id=self._by_node[nodeid], number=self._number)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """See ``_stay``."""
        __tracebackhide__ = True
        return (yield from _stay())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """See ``_stay``."""
        __tracebackhide__ = True
        return (yield from _stay())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        """See ``_stay``."""
        __tracebackhide__ = True
        return (yield from _stay())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn the reports of the phases of a test into one outcome."""
        report = yield
        self._seconds[item] = self._seconds.get(item, 0.0) + call.duration
        verdict = self._judge(item, call, report)
        if verdict is not None and self._verdicts.get(item, ("", "", ""))[0] != "failed":
            self._verdicts[item] = verdict
        if report.when == "teardown":
            self._finish(item)
        return report

    def _judge(
        self, item: pytest.Item, call: pytest.CallInfo[Any], report: pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """Return outcome, reason and details of a phase; None if it passed."""
        error = call.excinfo
        if error is not None and error.errisinstance(NoSampleError):
            return "no sample", str(error.value), ""
        if report.failed:
            if error is None:
                return "failed", _unexpected_pass(self._ids[item] in self._known, report.longreprtext), ""
            return "failed", error.exconly(tryshort=True), report.longreprtext.strip("\n")
        if report.skipped and hasattr(report, "wasxfail"):
            return ("known failure" if self._ids[item] in self._known else "refused"), report.wasxfail, ""
        if report.skipped:
            return "failed", f"the suite skips nothing, but this test did: {error and error.value}", ""
        return None

    def _finish(self, item: pytest.Item) -> None:
        test = self._ids[item]
        outcome, reason, details = self._verdicts.pop(item, ("passed", "", ""))
        observed = item.stash.get(OBSERVED, None)
        self._log.write(
            "result",
            id=test,
            outcome=outcome,
            reason=reason,
            details=details,
            url=self._known[test].url if test in self._known else "",
            duration_s=round(self._seconds[item], 4),
            observations=self._log.encode(observed or ()),
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Log the end; what has none died."""
        self._log.write("end", exit=int(exitstatus))


def _stay() -> Generator[None, None, None]:
    """Let a test that ends the session as a user would fail instead."""
    __tracebackhide__ = True
    try:
        return (yield)
    except (KeyboardInterrupt, pytest.exit.Exception) as error:
        raise RuntimeError(f"the test raised {type(error).__name__}, which would end the whole session") from error


def _clauses(item: pytest.Item) -> list[str]:
    return list(dict.fromkeys(name for mark in item.iter_markers("clause") for name in mark.args))


def _check_clauses(test: str, names: list[str]) -> None:
    unknown = [name for name in names if name not in CLAUSES]
    if unknown:
        raise ValueError(f"{test} names the unknown clause {', '.join(map(repr, unknown))}")
    if not names:
        raise ValueError(f"{test} names no clause: mark it @pytest.mark.clause(...)")


def _needs(test: str, item: pytest.Item) -> list[Capability]:
    capabilities = [capability for mark in item.iter_markers("needs") for capability in mark.args]
    for capability in capabilities:
        if not isinstance(capability, Capability):
            raise ValueError(f"{test}: needs(...) takes members of Capability, not {capability!r}")
    return capabilities


def _unexpected_pass(is_known: bool, text: str) -> str:
    if is_known:
        return "passes, but known_failures.toml lists it: remove the entry"
    return f"works, but the capability is not declared: declare it or raise UnsupportedError ({text.removeprefix('[XPASS(strict)] ')})"

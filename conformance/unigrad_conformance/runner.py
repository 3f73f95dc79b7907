"""Run the suite against backends, several at a time, in processes that nothing of the caller's folder changes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unigrad.errors import ArgumentError
from unigrad_conformance.results import NAME, Session, begin, finish
from unigrad_conformance.supervisor import INTERRUPTED, Limits, Supervisor

__all__ = ["SUITE", "Limits", "Progress", "Target", "check"]

SUITE = "unigrad_conformance.suite"
_SETTINGS = Path(__file__).with_name("pytest.ini")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
# What changes how Python or pytest runs tests.
_NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONOPTIMIZE", "PYTHONINSPECT", "PYTHONWARNINGS")
_POLL_S = 0.05


@dataclass(frozen=True)
class Target:
    """A backend and the interpreter that has it; ``arguments`` are further arguments for pytest."""

    name: str
    python: str = sys.executable
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``NAME`` or ``NAME=PYTHON``; ``ArgumentError`` for what cannot be the name of a file of results."""
        name, sign, python = text.partition("=")
        if not re.fullmatch(NAME, name):
            raise ArgumentError(f"{text!r} is no NAME or NAME=PYTHON: a name has letters, digits, '_', '.' and '-'")
        if sign and not python:
            raise ArgumentError(f"{text!r} names no interpreter after '='; leave '=' out for the one that runs this")
        if os.sep in python:
            python = str(Path(python).absolute())  # the process runs in another folder
        return cls(name, python or sys.executable)

    def __str__(self) -> str:
        return self.name if self.python == sys.executable else f"{self.name}={self.python}"


@dataclass(frozen=True)
class Progress:
    """How far the check of one backend is; ``total`` is None until the tests are collected.

    ``failed`` counts what fails the check, as the report does: also a sample that is missing where one is mandatory.
    """

    done: int = 0
    failed: int = 0
    total: int | None = None
    ended: bool = False


def check(
    targets: Sequence[Target],
    folder: Path,
    *,
    select: str | None = None,
    pattern: str | None = None,
    jobs: int = 1,
    limits: Limits | None = None,
    suite: str = SUITE,
    watch: Callable[[str, Progress], None] = lambda name, progress: None,
    stopped: Callable[[], bool] = lambda: False,
    keep: Callable[[Path, Session], None] = finish,
) -> list[Session]:
    """Check backends and write their results.

    Parameters
    ----------
    targets
        What to check; names are distinct.
    folder
        Existing folder for the results.
    select
        A test id, exactly, or names of clauses, separated by commas.
    pattern
        An expression for pytest's ``-k``.
    jobs
        Number of backends at a time.
    limits
        What each backend may take.
    suite
        Import name of the package of tests.
    watch
        Called with the name of a backend and how far it is.
    stopped
        Asked again and again; once it says yes, all processes are ended, and what they did so far is returned.
    keep
        Called with the folder and each session as it ends, to write its files.

    Returns
    -------
    list of Session
        In the order of ``targets``. A test in which the process died is failed, and a new process runs the rest; tests
        that no process came to are failed results that did not run.
    """
    limits = limits or Limits()
    for target in targets:
        begin(folder, target.name)
    waiting = list(targets)
    running: dict[str, Supervisor] = {}
    sessions: dict[str, Session] = {}

    def conclude(target: Target, session: Session) -> None:
        sessions[target.name] = replace(session, target=str(target), selection=select or pattern)
        keep(folder, sessions[target.name])

    try:
        while (waiting or running) and not stopped():
            while waiting and len(running) < jobs:
                target = waiting.pop(0)
                command = _command(target, suite, select, pattern)
                run = Supervisor(
                    target.name, command, _environment(os.environ), limits, restart="-x" not in target.arguments
                )
                try:
                    run.start()
                except OSError as error:
                    message = f"its process could not be started: {error}"
                    conclude(target, Session(target.name, status="died", message=message))
                    continue
                running[target.name] = run
            time.sleep(_POLL_S)
            for target in targets:
                if target.name in running and (session := _step(running[target.name], watch)) is not None:
                    del running[target.name]
                    conclude(target, session)
        for target in targets:
            if target.name in running:
                session = running.pop(target.name).conclude(INTERRUPTED)
                conclude(target, session or Session(target.name))
            elif target.name not in sessions:
                conclude(target, Session(target.name, status="interrupted", message=f"not begun: {INTERRUPTED.cause}"))
    finally:
        for run in running.values():
            run.abandon()
    return [sessions[target.name] for target in targets]


def _step(run: Supervisor, watch: Callable[[str, Progress], None]) -> Session | None:
    """Take what a process told, judge its end or what it exceeded, and return the session once it is over."""
    ended = run.ended
    run.read()
    end = None if ended else run.broken_limit()
    session = run.conclude(end) if ended or end is not None else None
    journal = run.journal
    watch(run.name, Progress(journal.done, len(journal.bad), journal.total, session is not None))
    return session


def _command(target: Target, suite: str, select: str | None, pattern: str | None) -> list[str]:
    command = [target.python, "-P", "-m", "pytest", "-p", "unigrad_conformance.plugin", *target.arguments]
    command += ["--noconftest", "-c", str(_SETTINGS), "--rootdir", "{folder}", "--basetemp", "{folder}/tmp"]
    command += ["--pyargs", suite, f"--unigrad-backend={target.name}", "--unigrad-events={pipe}"]
    # Only what Python prints is caught: the last words of a library that aborts the process are in its output then.
    command += ["--color=no", "-q", "--no-header", "--capture=sys"]
    command += [] if select is None else [f"--unigrad-select={select}"]
    command += [] if pattern is None else ["-k", pattern]
    return command


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a check: one thread, and nothing that the caller's folder or pytest settings change."""
    environment = {key: text for key, text in inherited.items() if key not in _NOT_INHERITED}
    environment |= dict.fromkeys(_THREADS, "1")
    environment |= {"PYTHONSAFEPATH": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # An empty or relative entry would mean another folder in the process.
    paths = [str(Path(path).resolve()) for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment

"""Run the suite against backends, each in a process, a process group and a temporary folder of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unigrad.errors import ArgumentError
from unigrad_conformance.events import read_events, session_of_log
from unigrad_conformance.results import Session, finish, is_bad

__all__ = ["SUITE", "Progress", "Target", "check"]

SUITE = "unigrad_conformance.suite"
_SETTINGS = Path(__file__).with_name("pytest.ini")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_PYTEST_ENDS = (0, 1, 5)  # all passed, some failed, none selected
_PYTEST_USAGE = 4
_POLL_S = 0.1


@dataclass(frozen=True)
class Target:
    """A backend and the interpreter that has it; ``arguments`` are further arguments for pytest."""

    name: str
    python: str = sys.executable
    arguments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read ``NAME`` or ``NAME=PYTHON``; ``ArgumentError`` for what cannot be the name of a file of results."""
        name, _, python = text.partition("=")
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ArgumentError(f"{text!r} is no NAME or NAME=PYTHON: a name has letters, digits, '_', '.' and '-'")
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


@dataclass
class _Run:
    target: Target
    started: float
    process: subprocess.Popen[bytes]
    cwd: tempfile.TemporaryDirectory[str]
    log: Path
    output: Path
    read: int = 0
    mandatory: dict[str, bool] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    timed_out: bool = False


def check(
    targets: Sequence[Target],
    folder: Path,
    *,
    select: str | None = None,
    pattern: str | None = None,
    jobs: int = 1,
    timeout_s: float = 900.0,
    suite: str = SUITE,
    watch: Callable[[str, Progress], None] = lambda name, progress: None,
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
        Number of processes at a time.
    timeout_s
        Seconds after which a process is killed.
    suite
        Import name of the package of tests.
    watch
        Called with the name of a backend and how far it is.

    Returns
    -------
    list of Session
        In the order of ``targets``. A process that died has failed results for the tests it did not finish.
    """
    waiting = list(targets)
    for target in waiting:
        for suffix in (".json", ".npz", ".jsonl"):
            (folder / f"{target.name}{suffix}").unlink(missing_ok=True)
    running: list[_Run] = []
    sessions: dict[str, Session] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0), folder, suite, select, pattern))
            time.sleep(_POLL_S)
            for run in list(running):
                ended = run.process.poll() is not None
                if not ended and time.monotonic() - run.started > timeout_s:
                    run.timed_out = True
                    _kill(run)
                    ended = True
                _advance(run, ended)
                watch(run.target.name, run.progress)
                if ended:
                    running.remove(run)
                    session = replace(_conclude(run, timeout_s), selection=select or pattern)
                    sessions[run.target.name] = session
                    finish(folder, session)
    finally:
        for run in running:
            _kill(run)
            run.cwd.cleanup()
    return [sessions[target.name] for target in targets]


def _start(target: Target, folder: Path, suite: str, select: str | None, pattern: str | None) -> _Run:
    cwd = tempfile.TemporaryDirectory(prefix="unigrad-")
    output = Path(cwd.name) / "output.txt"
    command = [target.python, "-P", "-m", "pytest", "-p", "unigrad_conformance.plugin", *target.arguments]
    command += ["--noconftest", "-c", str(_SETTINGS), "--rootdir", cwd.name, "--basetemp", f"{cwd.name}/tmp"]
    command += ["--pyargs", suite, f"--unigrad-backend={target.name}", f"--unigrad-record={folder.resolve()}"]
    command += ["--color=no", "-q", "--no-header"]
    command += [] if select is None else [f"--unigrad-select={select}"]
    command += [] if pattern is None else ["-k", pattern]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=cwd.name,
            env=_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Run(target, time.monotonic(), process, cwd, folder / f"{target.name}.jsonl", output)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a check: one thread, and nothing that the caller's folder or pytest settings change."""
    environment = {key: text for key, text in inherited.items() if key not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
    environment |= dict.fromkeys(_THREADS, "1")
    environment |= {"PYTHONSAFEPATH": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # An empty or relative entry would mean another folder in the process.
    paths = [str(Path(path).resolve()) for path in inherited.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _advance(run: _Run, ended: bool) -> None:
    """Read what the process has logged since the last time."""
    progress = run.progress
    if run.log.exists():
        with run.log.open("rb") as file:
            file.seek(run.read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        run.read += len(new)
        for event in read_events(new.decode("utf-8")):
            if event["event"] == "collected":
                run.mandatory = {test["id"]: test["mandatory"] for test in event["tests"]}
                progress = replace(progress, total=len(event["tests"]))
            elif event["event"] == "result":
                failed = is_bad(event["outcome"], run.mandatory[event["id"]])
                progress = replace(progress, done=progress.done + 1, failed=progress.failed + failed)
    run.progress = replace(progress, ended=ended)


def _kill(run: _Run) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait()


def _conclude(run: _Run, timeout_s: float) -> Session:
    """Return the session of a process that has ended."""
    _kill(run)  # what the tests started and left behind
    code = run.process.returncode
    text = run.log.read_text(encoding="utf-8") if run.log.exists() else ""
    ended = any(event["event"] == "end" for event in read_events(text))
    last = "\n".join(run.output.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    status, cause = "complete", "the session ended"
    if run.timed_out:
        status, cause = "timeout", f"killed after the limit of {timeout_s:g} s (--timeout)"
    elif code != _PYTEST_USAGE and (code not in _PYTEST_ENDS or not ended):
        status, cause = "died", f"process died ({_cause(code)})"
    session = session_of_log(run.target.name, text, cause, last)
    if session.status == "complete" and status != "complete":
        session = replace(session, status=status, message=f"{cause}; its last lines:\n{last}" if last else cause)
    elif session.status == "complete" and code == _PYTEST_USAGE:
        message = last[last.find("ERROR:") :]
        session = replace(session, status="usage" if session.framework else "error", message=message, results=())
    run.cwd.cleanup()
    return replace(session, target=str(run.target), duration_s=round(time.monotonic() - run.started, 2))


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"

"""Results of a checked backend: the model, and the files ``<backend>.json`` and ``<backend>.npz`` that hold it.

While a backend is checked its results stand in ``<backend>.jsonl`` (:mod:`unigrad_conformance.events`); :func:`finish`
writes the two files, each whole and then renamed, the JSON file last.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unigrad.errors import UnigradError
from unigrad_conformance.observations import Observation

__all__ = [
    "FORMAT",
    "OUTCOMES",
    "Result",
    "ResultsError",
    "Session",
    "finish",
    "is_bad",
    "load",
    "session_to_json",
    "write_whole",
]

FORMAT = 1
OUTCOMES = ("passed", "refused", "known failure", "no sample", "failed")


class ResultsError(UnigradError, ValueError):
    """A folder of results that cannot be read."""


def is_bad(outcome: str, mandatory: bool) -> bool:
    """Return whether the outcome of one test alone fails a check."""
    return outcome == "failed" or (outcome == "no sample" and mandatory)


@dataclass(frozen=True)
class Result:
    """What one test did on one backend.

    Parameters
    ----------
    id
        ``file.py::name[parameters]``.
    outcome
        One of ``OUTCOMES``.
    clauses, cases, needs
        What the test names: clauses, numbers of cases, capabilities.
    mandatory
        Whether the backend has to supply a sample for it.
    reason, details, url
        One line, the traceback, and the upstream link of a known failure.
    ran
        False if the session ended before the test was started.
    duration_s
        Seconds with set-up and teardown.
    observations
        What it recorded.
    """

    id: str
    outcome: str
    clauses: tuple[str, ...] = ()
    cases: tuple[int, ...] = ()
    needs: tuple[str, ...] = ()
    mandatory: bool = True
    reason: str = ""
    details: str = ""
    url: str = ""
    ran: bool = True
    duration_s: float = 0.0
    observations: tuple[Observation, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Whether this result alone fails a check."""
        return is_bad(self.outcome, self.mandatory)


@dataclass(frozen=True)
class Session:
    """One backend, checked in one process.

    Parameters
    ----------
    backend
        Its name.
    status
        ``"complete"``; ``"unavailable"`` (it does not load), ``"unknown"`` (no such name), ``"usage"`` (a selection
        that cannot be read), ``"error"`` (the suite does not start), ``"died"`` or ``"timeout"``.
    message
        What happened, unless complete.
    target
        The argument that repeats it: ``NAME`` or ``NAME=PYTHON``.
    selection
        The pattern that chose the tests; None for all.
    python, platform, framework, framework_version, unigrad_version
        What ran.
    capabilities, guarantees, dtypes
        As declared.
    duration_s
        Wall-clock seconds of the process.
    results
        One per test that was to run.
    """

    backend: str
    status: str = "complete"
    message: str = ""
    target: str = ""
    selection: str | None = None
    python: str = ""
    platform: str = ""
    framework: str = ""
    framework_version: str = ""
    unigrad_version: str = ""
    capabilities: tuple[str, ...] = ()
    guarantees: Mapping[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    duration_s: float = 0.0
    results: tuple[Result, ...] = ()

    @property
    def bad(self) -> list[Result]:
        """Results that fail the check."""
        return [result for result in self.results if result.is_bad]

    def count(self, outcome: str) -> int:
        """Return the number of results with an outcome."""
        return sum(result.outcome == outcome for result in self.results)


_LISTS = ("capabilities", "dtypes")


def session_to_json(session: Session) -> dict[str, Any]:
    """Return JSON data of a session, arrays left out."""
    results = [
        {
            **asdict(replace(result, observations=())),
            "observations": [observation.to_json() for observation in result.observations],
        }
        for result in session.results
    ]
    return {**asdict(replace(session, results=())), "results": results}


def finish(folder: Path, session: Session) -> None:
    """Write ``<backend>.npz`` and ``<backend>.json`` and remove the log."""
    arrays = {
        f"{result.id}/{observation.name}": observation.array
        for result in session.results
        for observation in result.observations
        if observation.array is not None
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w") as member:
                np.save(member, array, allow_pickle=False)
    data = {
        "format": FORMAT,
        "arrays_sha256": hashlib.sha256(packed.getvalue()).hexdigest(),
        **session_to_json(session),
    }
    write_whole(folder / f"{session.backend}.npz", packed.getvalue())
    write_whole(folder / f"{session.backend}.json", (json.dumps(data, indent=1) + "\n").encode())
    (folder / f"{session.backend}.jsonl").unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load(folder: Path) -> list[Session]:
    """Read the sessions in a folder, in the order of their names.

    Raises
    ------
    ResultsError
        If the folder is missing, holds no results, results half written, damaged, or of another format.
    """
    if not folder.is_dir():
        raise ResultsError(f"no folder {folder}; write one with: unigrad check --results {folder}")
    files = sorted(folder.glob("*.json"))
    unfinished = sorted(log.stem for log in folder.glob("*.jsonl"))
    if unfinished:
        raise ResultsError(
            f"{folder} is half written: the check of {', '.join(unfinished)} is running or was stopped. "
            f"Run it again: unigrad check --results {folder}"
        )
    if not files:
        raise ResultsError(f"{folder} holds no results; write them with: unigrad check --results {folder}")
    return [_load_one(file) for file in files]


def _load_one(file: Path) -> Session:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ResultsError(f"{file} cannot be read as results: {error}") from error
    if not isinstance(data, dict) or "format" not in data:
        raise ResultsError(f"{file} is not a file of results")
    if data["format"] != FORMAT:
        raise ResultsError(
            f"{file} has format {data['format']}; this unigrad reads format {FORMAT}. Check again with this version"
        )
    arrays = _load_arrays(file.with_suffix(".npz"), data.get("arrays_sha256"))
    try:
        results = [_load_result(result, arrays) for result in data["results"]]
        fields: dict[str, Any] = {key: data[key] for key in Session.__dataclass_fields__}
        fields |= {key: tuple(data[key]) for key in _LISTS}
        return Session(**{**fields, "results": tuple(results)})
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{file} is damaged: {type(error).__name__}: {error}") from error


def _load_arrays(file: Path, digest: str | None) -> Mapping[str, Any]:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ResultsError(f"the observations {file} cannot be read: {error}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ResultsError(f"{file} is not the file that was written with {file.with_suffix('.json').name}")
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def _load_result(data: Mapping[str, Any], arrays: Mapping[str, Any]) -> Result:
    fields: dict[str, Any] = dict(data)
    for key in ("clauses", "cases", "needs"):
        fields[key] = tuple(fields[key])
    fields["observations"] = tuple(_load_observations(data["id"], data["observations"], arrays))
    return Result(**fields)


def _load_observations(
    test: str, observations: Sequence[Mapping[str, Any]], arrays: Mapping[str, Any]
) -> Iterable[Observation]:
    for data in observations:
        array = arrays[f"{test}/{data['name']}"] if data["kind"] == "array" else None
        yield Observation.from_json(data, array)

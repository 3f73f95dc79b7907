"""Results of a checked backend: the model, and the files ``<backend>.json`` and ``<backend>.npz`` that hold it.

While a backend is checked an empty ``<backend>.unfinished`` says so; :func:`finish` writes the two files, each whole and
then renamed, the JSON file last. What is read is not trusted: :func:`load` answers anything else with a clear error.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unigrad.errors import UnigradError
from unigrad_conformance.observations import Observation
from unigrad_conformance.outputs import write_whole

__all__ = [
    "FORMAT",
    "NAME",
    "OUTCOMES",
    "Result",
    "ResultsError",
    "Session",
    "begin",
    "finish",
    "is_bad",
    "load",
    "session_to_json",
]

FORMAT = 3
NAME = r"\w[\w.-]*"
"""What the name of a backend looks like, so that it is the name of a file, too."""
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
    ending
        In a word or two, what ended the process in this test, such as ``"SIGSEGV"``, ``"exit code 0"`` or
        ``"time limit"``; for a test that did not run, why. Empty if the process went on.
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
    ending: str = ""
    ran: bool = True
    duration_s: float = 0.0
    observations: tuple[Observation, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Whether this result alone fails a check."""
        return is_bad(self.outcome, self.mandatory)


@dataclass(frozen=True)
class Session:
    """One backend, checked in a process of its own, and after a test that ended it in a new one.

    Parameters
    ----------
    backend
        Its name.
    status
        ``"complete"``; ``"unavailable"`` (it does not load), ``"unknown"`` (no such name), ``"usage"`` (a selection
        that cannot be read), ``"error"`` (the suite does not start), ``"died"`` (the process did, and not in a test),
        ``"timeout"`` (of the whole backend) or ``"interrupted"``.
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
        Wall-clock seconds of its processes.
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


_UNFINISHED = ".unfinished"


def session_to_json(session: Session) -> dict[str, Any]:
    """Return JSON data of a session, arrays left out."""
    results = [
        {
            **vars(result),
            "observations": [observation.to_json() for observation in result.observations],
        }
        for result in session.results
    ]
    return {**vars(session), "results": results}


def begin(folder: Path, backend: str) -> None:
    """Remove the results of an earlier check of a backend, and say that one is running."""
    (folder / f"{backend}{_UNFINISHED}").touch()
    for suffix in (".json", ".npz"):
        (folder / f"{backend}{suffix}").unlink(missing_ok=True)


def finish(folder: Path, session: Session) -> None:
    """Write ``<backend>.npz`` and ``<backend>.json``, and say no longer that the check is running."""
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
    data = session_to_json(session)
    lines = ",\n".join(json.dumps(result) for result in data.pop("results"))
    head = json.dumps({"format": FORMAT, "arrays_sha256": hashlib.sha256(packed.getvalue()).hexdigest(), **data})
    write_whole(folder / f"{session.backend}.npz", packed.getvalue())
    write_whole(folder / f"{session.backend}.json", f'{head[:-1]}, "results": [\n{lines}\n]}}\n'.encode())
    (folder / f"{session.backend}{_UNFINISHED}").unlink(missing_ok=True)


def load(folder: Path) -> list[Session]:
    """Read the sessions in a folder, in the order of their names.

    Raises
    ------
    ResultsError
        If the folder is missing, holds no results, results half written, damaged, or of another format.
    """
    try:
        if not folder.is_dir():
            raise ResultsError(f"no folder {folder}; write one with: unigrad check --results {folder}")
        entries = list(folder.iterdir())  # glob() passes over what it may not read
        files = sorted(file for file in entries if file.suffix == ".json" and file.is_file())
        unfinished = sorted(file.stem for file in entries if file.suffix == _UNFINISHED)
    except OSError as error:
        raise ResultsError(f"the folder {folder} cannot be read: {error.strerror}") from error
    if unfinished:
        raise ResultsError(
            f"{folder} is half written: the check of {', '.join(unfinished)} is running or was stopped. "
            f"Run it again: unigrad check --results {folder}"
        )
    if not files:
        raise ResultsError(f"{folder} holds no results; write them with: unigrad check --results {folder}")
    return [_load_one(file) for file in files]


_LARGEST = 2**30  # bytes; the results of the whole suite take a hundredth of it
_TEXTS = ("backend", "status", "message", "target", "python", "platform", "framework", "framework_version")
_SESSION: dict[str, Any] = {
    **dict.fromkeys((*_TEXTS, "unigrad_version"), str),
    **dict.fromkeys(("capabilities", "dtypes"), list[str]),
    "selection": str | None,
    "guarantees": dict[str, str],
    "duration_s": float,
    "results": list,
}
_RESULT: dict[str, Any] = {
    **dict.fromkeys(("id", "outcome", "reason", "details", "url", "ending"), str),
    **dict.fromkeys(("clauses", "needs"), list[str]),
    "cases": list[int],
    **dict.fromkeys(("mandatory", "ran"), bool),
    "duration_s": float,
    "observations": list,
}
_OBSERVATION: dict[str, Any] = {
    **dict.fromkeys(("name", "kind", "dtype", "reason", "widened"), str),
    "exact": object,
    "terms": int,
    **dict.fromkeys(("factor", "scale", "error"), float),
    "choice": bool,
}


def _fields(data: Any, kinds: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the data, which has exactly these keys, each of its kind; ``ValueError`` otherwise."""
    if not isinstance(data, dict) or set(data) != set(kinds):
        raise ValueError(f"{what} has not exactly the entries {', '.join(kinds)}")
    for key, kind in kinds.items():
        if not _is(data[key], kind):
            raise ValueError(f"{what}: {key} is {data[key]!r:.60}")
    return data


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind in (str, bool, list, object) or kind == str | None:
        return isinstance(value, kind)
    if kind == dict[str, str]:
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    (inner,) = kind.__args__
    return isinstance(value, list) and all(
        _is(item, inner) if inner is int else isinstance(item, inner) for item in value
    )


def _load_one(file: Path) -> Session:
    try:
        data = json.loads(_read(file))
    except (ValueError, OSError, RecursionError) as error:
        raise ResultsError(f"{file} cannot be read as results: {error}") from error
    if not isinstance(data, dict) or "format" not in data:
        raise ResultsError(f"{file} is not a file of results")
    version = data.pop("format")
    if version != FORMAT:
        raise ResultsError(
            f"{file} has format {version!r:.40}; this unigrad reads format {FORMAT}. Check again with this version"
        )
    arrays = _load_arrays(file.with_suffix(".npz"), data.pop("arrays_sha256", None))
    try:
        fields = dict(_fields(data, _SESSION, "the session"))
        if fields["backend"] != file.stem or not re.fullmatch(NAME, file.stem):
            raise ValueError(f"the backend is {fields['backend']!r:.60}")
        fields |= {key: tuple(fields[key]) for key in ("capabilities", "dtypes")}
        fields["results"] = tuple(_load_result(result, arrays) for result in fields["results"])
    except (KeyError, ValueError, TypeError) as error:
        raise ResultsError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    return Session(**fields)


def _read(file: Path) -> bytes:
    if file.stat().st_size > _LARGEST:
        raise ValueError(f"it has more than {_LARGEST >> 20} MiB")
    return file.read_bytes()


def _load_arrays(file: Path, digest: str | None) -> Mapping[str, Any]:
    try:
        content = _read(file)
    except (ValueError, OSError) as error:
        raise ResultsError(f"the observations {file} cannot be read: {error}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ResultsError(f"{file} is not the file that was written with {file.with_suffix('.json').name}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > _LARGEST:
            raise ValueError(f"it unpacks to more than {_LARGEST >> 20} MiB")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except Exception as error:  # a hostile file fails in zipfile, zlib or NumPy in any way
        raise ResultsError(f"the observations {file} cannot be read: {type(error).__name__}: {error}") from error


def _load_result(data: Any, arrays: Mapping[str, Any]) -> Result:
    fields = dict(_fields(data, _RESULT, "a result"))
    if fields["outcome"] not in OUTCOMES:
        raise ValueError(f"the outcome is {fields['outcome']!r:.60}")
    fields |= {key: tuple(fields[key]) for key in ("clauses", "cases", "needs")}
    fields["observations"] = tuple(_load_observations(fields["id"], fields["observations"], arrays))
    return Result(**fields)


def _load_observations(test: str, observations: Sequence[Any], arrays: Mapping[str, Any]) -> Iterable[Observation]:
    for data in observations:
        _fields(data, _OBSERVATION, f"an observation of {test}")
        array = arrays[f"{test}/{data['name']}"] if data["kind"] == "array" else None
        if array is not None and array.dtype.kind not in "biuf":
            raise ValueError(f"an observation of {test} has dtype {array.dtype}")
        yield Observation.from_json(data, array)

"""The log of a running session: one JSON object a line, so that what is done survives a process that dies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from unigrad_conformance.observations import Observation, to_line

__all__ = ["EventLog", "read_events"]


class EventLog:
    """Append events to a file.

    Parameters
    ----------
    path
        File to start anew; None to log nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("", encoding="utf-8")

    def write(self, event: str, /, **data: Any) -> None:
        """Append one event; it is in the file when this returns."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": event, **data}) + "\n")

    def encode(self, observations: Iterable[Observation]) -> list[dict[str, Any]]:
        """Return observations as JSON data; nothing if nothing is logged."""
        return [] if self._path is None else [to_line(observation) for observation in observations]


def read_events(text: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a log; a last line cut off by the death of its process is left out."""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)

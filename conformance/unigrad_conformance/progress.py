"""Show how far a check is: one bar per backend on a terminal, else a plain line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from unigrad_conformance.runner import Progress

__all__ = ["Display"]

_PLAIN_EVERY_S = 10.0


class Display:
    """Context manager whose ``show`` takes the progress of a backend.

    Parameters
    ----------
    names
        Backends, in the order of their lines.
    stream
        Where to show it; standard error by default, so that the report can be redirected.
    """

    def __init__(self, names: list[str], stream: TextIO | None = None) -> None:
        self._stream = stream = sys.stderr if stream is None else stream
        self._last: dict[str, float] = {}
        self._bars: Bars | None = None
        if stream.isatty():
            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[failed]}"),
                TimeElapsedColumn(),
                console=Console(file=stream),
            )
            self._tasks = {name: self._bars.add_task(name, total=None, failed="") for name in names}

    def __enter__(self) -> Display:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            with contextlib.suppress(OSError):  # as in show
                self._bars.stop()

    def show(self, name: str, progress: Progress) -> None:
        """Show how far the check of a backend is."""
        with contextlib.suppress(OSError, ValueError):  # nobody may read it any more, which is no reason to stop
            self._show(name, progress)

    def _show(self, name: str, progress: Progress) -> None:
        failed = f"{progress.failed} failed" if progress.failed else ""
        if self._bars is not None:
            self._bars.update(self._tasks[name], completed=progress.done, total=progress.total, failed=failed)
            return
        if name in self._last and not progress.ended and time.monotonic() - self._last[name] < _PLAIN_EVERY_S:
            return
        self._last[name] = time.monotonic()
        total = "?" if progress.total is None else progress.total
        state = "done" if progress.ended else "running"
        self._stream.write(f"{name}: {state}, {progress.done}/{total} tests{', ' + failed if failed else ''}\n")
        self._stream.flush()

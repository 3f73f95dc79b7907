"""What a command puts out: files, writable before the work and whole after it, and text that cannot harm a terminal."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from unigrad.errors import UnigradError

__all__ = ["Output", "OutputError", "printable", "write_whole"]


class OutputError(UnigradError, OSError):
    """A file or folder that cannot be written."""


class Output:
    """Context manager for one file.

    Parameters
    ----------
    path
        Where; None to write nothing. What exists and is no regular file, such as ``/dev/stdout`` or a named pipe, is
        written into, never replaced.

    Raises
    ------
    OutputError
        On entering, for a file that cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._partial: Path | None = None

    def __enter__(self) -> Output:
        if self._path is not None:
            try:
                if self._path.is_dir():
                    raise IsADirectoryError(0, "it is a folder")
                if _is_device(self._path):
                    return self
                handle, partial = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
                os.close(handle)
                self._partial = Path(partial)
            except OSError as error:
                raise _cannot_write(self._path, error) from error
        return self

    def write(self, text: str | Callable[[], str]) -> None:
        """Write the text, which is made only if there is a file.

        ``OutputError`` if there is no room for it, and then there is no file, or the one before.
        """
        if self._path is None:
            return
        text = text if isinstance(text, str) else text()
        try:
            if self._partial is None:
                self._path.write_text(text, encoding="utf-8")
                return
            self._partial.write_text(text, encoding="utf-8")
            self._partial.chmod(0o644)
            self._partial.replace(self._path)
        except OSError as error:
            raise _cannot_write(self._path, error) from error

    def __exit__(self, *details: object) -> None:
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write the file {path}: {error.strerror or error}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def printable(text: str) -> str:
    r"""Return the text with control characters, which could move a terminal's cursor, written out as ``\x1b``."""
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]", lambda match: f"\\x{ord(match[0]):02x}", text)

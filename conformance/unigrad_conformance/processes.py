"""One process of a check: started apart from everything, watched, and ended with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import resource
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Leftover", "Worker", "die_with_parent", "memory_to_spare", "number_children", "what_it_said"]

_PROC = Path("/proc")
_MARK = "UNIGRAD_CHECK"
_NUMBERED = "test {}"  # at most 15 characters
_LARGEST_FILE = 2**30  # bytes; no test needs more, and one that writes without end must not fill the disk
_PIPE = 2**20  # bytes; a full pipe makes the tests wait until it is read
_PARTING_S = 1.0  # for helpers that end by themselves when their parent has
_ABORT_S = 2.0
_TAIL = 2**16  # bytes of output that are read
_LINES = 20


@dataclass(frozen=True)
class Leftover:
    """A process that outlived the tests, and its command line.

    The test that started it is told by ``node``, the id that pytest gave it, or where the process runs no other program
    than its parent by ``number``, which :func:`number_children` set; without, they are empty and 0.
    """

    pid: int
    node: str
    number: int
    command: str


class Worker:
    """A process in a session of its own, whose standard output is a file and whose events come through a pipe.

    Parameters
    ----------
    command
        What to run; ``{pipe}`` in it stands for the number of the pipe's file descriptor.
    folder
        Its working folder, which holds ``output.txt`` then.
    environment
        Its environment.

    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._token = secrets.token_hex(16)
        self._output = folder / "output.txt"
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):
                fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _PIPE)
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    [part.replace("{pipe}", str(theirs)) for part in command],
                    cwd=folder,
                    env={**environment, _MARK: self._token},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs,),
                    start_new_session=True,
                )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        _restrain(self._process.pid)

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def code(self) -> int:
        """Its exit code, negative for the signal that ended it; only after its end."""
        return self._process.wait()

    def read(self) -> bytes:
        """Return what is in the pipe now; empty for nothing."""
        with contextlib.suppress(BlockingIOError):
            return os.read(self._pipe, _PIPE)
        return b""

    def memory(self, *, of_all: bool) -> int:
        """Return the bytes of memory that it, or ``of_all`` of its session, holds; 0 where that cannot be told."""
        if not of_all:
            return _resident(self._process.pid)
        return sum(_resident(pid) for pid, session in _sessions() if session == self._process.pid)

    def kill(self, *, tell_where: bool = False) -> None:
        """End it at once; ``tell_where`` lets Python write first what each thread is in. :meth:`clear` ends the rest."""
        if tell_where and not self.ended:
            os.kill(
                self._process.pid, signal.SIGABRT
            )  # pytest's faulthandler answers it, whatever holds the interpreter
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ABORT_S)
        self._process.kill()
        self._process.wait()

    def clear(self) -> list[Leftover]:
        """End what the process, which has ended, left behind, also outside its session, and return what that was."""
        deadline = time.monotonic() + _PARTING_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        found = left
        while left:  # what is being killed may have started more
            for one in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, signal.SIGKILL)
            time.sleep(0.01)
            left = [one for one in self._left() if one not in found or time.monotonic() < deadline + 5 * _PARTING_S]
            found += [one for one in left if one not in found]
        with contextlib.suppress(ProcessLookupError, PermissionError):  # where there is no /proc to find them in
            os.killpg(self._process.pid, signal.SIGKILL)
        return found

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._pipe)

    def output(self) -> str:
        """Return the end of what it wrote."""
        try:
            with self._output.open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
                return file.read().decode("utf-8", errors="replace")
        except OSError:  # a test has removed it
            return ""

    def _left(self) -> list[Leftover]:
        left = []
        for pid, session in _sessions():
            try:
                environment = (_PROC / str(pid) / "environ").read_bytes()
                if session != self._process.pid and f"{_MARK}={self._token}".encode() not in environment:
                    continue
                line = (_PROC / str(pid) / "cmdline").read_bytes()
                name = (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
            except OSError:  # it has ended, or belongs to somebody else
                continue
            if not line:  # a zombie
                continue
            node = re.search(rb"(?:^|\0)PYTEST_CURRENT_TEST=([^\0]*) \(\w+\)", environment)
            number = re.fullmatch(_NUMBERED.format(r"(\d+)"), name)
            command = _text(line.replace(b"\0", b" ").strip())
            left.append(Leftover(pid, _text(node[1]) if node else "", int(number[1]) if number else 0, command))
        return left


def _restrain(pid: int) -> None:
    """Let a process dump no core, write no endless file, and be the first that is ended when memory runs out."""
    if not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError, ValueError):
        for which, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _LARGEST_FILE)):
            soft, hard = resource.prlimit(pid, which)
            bounds = [bound for bound in (soft, limit) if bound != resource.RLIM_INFINITY]
            resource.prlimit(pid, which, (min(bounds), hard))
        (_PROC / str(pid) / "oom_score_adj").write_text("1000")


def _sessions() -> Iterator[tuple[int, int]]:
    """Yield the id and session of each process; nothing where the system has no /proc."""
    with contextlib.suppress(FileNotFoundError), os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    yield int(entry.name), int(_brief(f"{_PROC}/{entry.name}/stat").rpartition(b")")[2].split()[3])


def _resident(pid: int) -> int:
    try:
        return int(_brief(f"{_PROC}/{pid}/statm").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _brief(path: str) -> bytes:
    """Return what is in a short file; it is read for every process again and again."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def memory_to_spare() -> int | None:
    """Return the bytes that can be taken without harm: four fifths of what is free; None where that cannot be told."""
    free = []
    with contextlib.suppress(OSError, ValueError):
        match = re.search(r"MemAvailable:\s+(\d+) kB", (_PROC / "meminfo").read_text())
        free += [int(match[1]) * 1024] if match else []
    with contextlib.suppress(OSError, ValueError):  # a container's own limit, in version 2 of control groups
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        cached = re.search(r"^file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        free.append(limit - used + (int(cached[1]) if cached else 0))
    return min(free) * 4 // 5 if free else None


def what_it_said(output: str) -> str:
    """Return the lines of a dead process that tell most: of a crash, where each thread was outside of pytest."""
    lines = output.splitlines()
    crash = next((i for i in reversed(range(len(lines))) if "Fatal Python error: " in lines[i]), None)
    if crash is None:
        return "\n".join(lines[-_LINES:])
    told = [line for line in lines[max(crash - 3, 0) :] if line.strip() and not _is_machinery(line)]
    return "\n".join(told[:_LINES])


def _is_machinery(line: str) -> bool:
    return bool(re.search(r'/(_pytest|pluggy|pytest)/|File "<frozen runpy>"|^Extension modules:', line))


def die_with_parent() -> None:
    """Have the system end this process when its parent ends in any way, where it can."""
    with contextlib.suppress(OSError, AttributeError):
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG of Linux; other systems have no prctl
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def number_children(number: int) -> None:
    """Let processes that are forked from now on bear this number in their name, where the system can."""
    with contextlib.suppress(OSError):
        (_PROC / "self" / "comm").write_text(_NUMBERED.format(number))


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")

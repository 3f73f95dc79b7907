"""The command ``unigrad``: its arguments, and what a user's mistakes are answered with."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import unigrad
from unigrad.errors import UnigradError
from unigrad.plugins import Row, backend_names, explain
from unigrad_conformance import quiet

__all__ = ["main"]

_USAGE = 2


class _Mistake(UnigradError):
    """A mistake in the arguments; its text is all that the user sees."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Parameters
    ----------
    argv
        Arguments; those of the process by default.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UnigradError as error:
        print(f"unigrad: {error}", file=sys.stderr)
        return _USAGE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader, e.g. head, has seen enough
        return 1
    except KeyboardInterrupt:
        print("unigrad: interrupted; the processes of the check were ended", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="unigrad", description="One gradient contract over several frameworks.")
    parser.add_argument("--version", action="version", version=f"unigrad {unigrad.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    backends = commands.add_parser("backends", help="what is installed, what is missing and what is broken")
    backends.set_defaults(run=_backends)

    check = commands.add_parser("check", help="run the conformance suite, each backend in its own process")
    check.add_argument("targets", nargs="*", metavar="NAME[=PYTHON]", help="default: all that are installed")
    check.add_argument(
        "-k", dest="pattern", help="a test id, clauses such as 'G1' or 'G1, C4', or an expression over names of tests"
    )
    check.add_argument("-j", dest="jobs", type=_positive_int, metavar="N", help="backends at a time (default: cores)")
    check.add_argument("--json", type=Path, metavar="FILE", help="write all results into one file")
    check.add_argument("--results", type=Path, metavar="DIR", help="keep the results for 'unigrad report'")
    check.add_argument(
        "--timeout", type=_positive, default=900.0, metavar="SECONDS", help="limit per backend (default: %(default)g)"
    )
    check.add_argument("--mutants", action="store_true", help="prove the suite: every fault put in must be found")
    check.set_defaults(run=_check)

    report = commands.add_parser("report", help="the tables of a check again, from its results")
    report.add_argument("folder", type=Path, metavar="DIR")
    report.add_argument("--markdown", action="store_true", help="only the matrix of clauses, as Markdown")
    report.set_defaults(run=_report)

    bench = commands.add_parser("bench", help="time and memory as ratios to the framework's own idiom")
    bench.add_argument("names", nargs="+", metavar="NAME")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures into a file")
    bench.add_argument("--only", default="", metavar="TEXT", help="only the cases whose name has this text")
    bench.add_argument("--pairs", type=int, default=60, metavar="N", help="interleaved pairs that count (default 60)")
    bench.set_defaults(run=_bench)
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def _require(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise _Mistake(
            f"this needs {' and '.join(missing)}, which is not installed. Install it with: pip install 'unigrad[check]'"
        )


def _backends(arguments: argparse.Namespace) -> int:
    rows = [explain(name) for name in backend_names()]
    if not rows:
        print("no backends installed")
    for row in rows:
        print("\n".join(_row_lines(row)))
    return 0


def _row_lines(row: Row) -> list[str]:
    framework = " ".join(filter(None, (row.framework, row.version))) or "-"
    lines = [f"{row.name:<12} {row.status:<12} {framework}  (from {row.distribution})"]
    if row.error is not None:
        lines.append(f"    {row.error}")
    if row.status == "ready":
        capabilities = ", ".join(sorted(capability.name.lower() for capability in row.capabilities))
        guarantees = ", ".join(sorted(f"{which.name.lower()} {text}" for which, text in row.guarantees.items()))
        lines += [f"    dtypes: {', '.join(row.dtypes)}", f"    capabilities: {capabilities or 'none'}"]
        lines.append(f"    guarantees: {guarantees or 'none'}")
    return lines


def _end(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check(arguments: argparse.Namespace) -> int:
    _require("pytest", "rich")
    # The processes of a check are groups of their own, which a signal to this one does not reach.
    signal.signal(signal.SIGTERM, _end)
    if arguments.mutants:
        return _mutants(arguments)
    from unigrad_conformance.checking import check_all

    with tempfile.TemporaryDirectory(prefix="unigrad-results-") as temporary:
        folder = _folder(arguments.results) or Path(temporary)
        with _Output(arguments.json) as output:
            outcome = check_all(
                arguments.targets, folder, pattern=arguments.pattern, jobs=arguments.jobs, timeout_s=arguments.timeout
            )
            print(outcome.text)
            output.write(outcome.data)
            return outcome.code


def _mutants(arguments: argparse.Namespace) -> int:
    if arguments.targets or arguments.pattern or arguments.json or arguments.results:
        raise _Mistake("check --mutants takes no names, -k, --json or --results")
    from rich.console import Console

    mutants = importlib.import_module("unigrad_conformance.mutants")
    return int(mutants.run_mutants(Console(), arguments.jobs or os.cpu_count() or 1))


def _folder(path: Path | None) -> Path | None:
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise _Mistake(f"cannot write into the folder {path}: {error.strerror}") from error
    return path


class _Output:
    """A JSON file that is known to be writable before the work, and appears whole after it."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._partial: Path | None = None

    def __enter__(self) -> _Output:
        if self._path is not None:
            try:
                if self._path.is_dir():
                    raise IsADirectoryError(0, "it is a folder")
                handle, partial = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
                os.close(handle)
                self._partial = Path(partial)
            except OSError as error:
                raise _Mistake(f"cannot write the file {self._path}: {error.strerror}") from error
        return self

    def write(self, data: object) -> None:
        if self._path is not None and self._partial is not None:
            self._partial.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
            self._partial.chmod(0o644)
            self._partial.replace(self._path)

    def __exit__(self, *details: object) -> None:
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)


def _report(arguments: argparse.Namespace) -> int:
    from unigrad_conformance.report import matrix, report_text
    from unigrad_conformance.results import load

    sessions = load(arguments.folder)
    print(matrix(sessions, counts=False).markdown() if arguments.markdown else report_text(sessions))
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    _require("rich")
    for name in arguments.names:
        row = explain(name)
        if row.status != "ready":
            raise _Mistake(row.error or f"backend {name!r} is {row.status}")
        module = f"{quiet.load(name).spec.package}.bench"
        if importlib.util.find_spec(module) is None:
            raise _Mistake(
                f"backend {name!r} has no module {module}, which unigrad bench needs; see unigrad.samples.Bench"
            )
    bench = importlib.import_module("unigrad_conformance.bench")
    if arguments.pairs < 2:
        raise _Mistake("--pairs needs at least 2")
    warmups = min(10, arguments.pairs)
    with _Output(arguments.json) as output:
        code, data = bench.main(arguments.names, arguments.pairs, warmups, arguments.only)
        output.write(data)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

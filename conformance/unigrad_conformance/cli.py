"""The command ``unigrad``: its arguments, and what a user's mistakes are answered with."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import unigrad
from unigrad.errors import UnigradError
from unigrad.plugins import Row, backend_names, explain
from unigrad_conformance import quiet
from unigrad_conformance.outputs import Output, OutputError, printable
from unigrad_conformance.probing import explained

if TYPE_CHECKING:
    from unigrad_conformance.results import Session

__all__ = ["main"]

_USAGE = 2
INTERRUPTED = 128 + signal.SIGINT


class _Mistake(UnigradError):
    """A mistake in the arguments; its text is all that the user sees."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Parameters
    ----------
    argv
        Arguments; those of the process by default.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # open until the end
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # reports hold any character, and a terminal may be ASCII
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except UnigradError as error:
        print(f"unigrad: {error}", file=sys.stderr)
        return _USAGE
    except BrokenPipeError:
        _give_up_stdout()  # the reader, e.g. head, has seen enough
        return 1
    except OSError as error:
        _give_up_stdout()
        print(f"unigrad: {error}", file=sys.stderr)
        return _USAGE
    except KeyboardInterrupt:
        print("unigrad: interrupted; its processes were ended", file=sys.stderr)
        return INTERRUPTED


def _give_up_stdout() -> None:
    """Let what is left in the buffer of standard output go, which else fails once more at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    check.add_argument("--json", type=_path, metavar="FILE", help="write all results into one file")
    check.add_argument("--junit", type=_path, metavar="FILE", help="write the results as JUnit XML")
    check.add_argument("--html", type=_path, metavar="FILE", help="write the report as one HTML page")
    check.add_argument("--results", type=_path, metavar="DIR", help="keep the results for 'unigrad report'")
    check.add_argument(
        "--test-timeout", type=_positive, default=120.0, metavar="SECONDS", help="limit per test (default: %(default)g)"
    )
    check.add_argument(
        "--timeout", type=_positive, default=1800.0, metavar="SECONDS", help="limit per backend (default: %(default)g)"
    )
    check.add_argument(
        "--memory", type=_bytes, metavar="SIZE", help="limit per backend, such as 4G (default: 4/5 of what is free)"
    )
    check.add_argument("--mutants", action="store_true", help="prove the suite: every fault put in must be found")
    check.set_defaults(run=_check)

    report = commands.add_parser("report", help="the tables of a check again, from its results")
    report.add_argument("folder", type=_path, metavar="DIR")
    report.add_argument("--markdown", action="store_true", help="only the matrix of clauses, as Markdown")
    report.add_argument("--html", type=_path, metavar="FILE", help="write the report as one HTML page, too")
    report.set_defaults(run=_report)

    bench = commands.add_parser("bench", help="time and memory as ratios to the framework's own idiom")
    bench.add_argument("names", nargs="+", metavar="NAME")
    bench.add_argument("--json", type=_path, metavar="FILE", help="write the figures into a file")
    bench.add_argument("--only", default="", metavar="TEXT", help="only the cases whose name has this text")
    bench.add_argument("--pairs", type=int, default=60, metavar="N", help="interleaved pairs that count (default 60)")
    bench.set_defaults(run=_bench)
    return parser


def _path(text: str) -> Path:
    if not text:  # as of a variable of the shell that is not set; it would be the present folder
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) < float("inf"):
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a positive number")


def _positive_int(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (number := int(text)) > 0:
            return number
    raise argparse.ArgumentTypeError(f"{text} is not a positive number")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.upper().removesuffix("IB").removesuffix("B"))
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2] or " ")) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a size such as 512M or 4G")
    return size


def _require(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise _Mistake(
            f"this needs {' and '.join(missing)}, which is not installed. Install it with: pip install 'unigrad[check]'"
        )


def _backends(arguments: argparse.Namespace) -> int:
    rows = explained(backend_names())
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


def _check(arguments: argparse.Namespace) -> int:
    _require("pytest", "rich", *(["jinja2"] if arguments.html else []))
    if arguments.mutants:
        # The processes of a check are groups of their own, which a signal to this one does not reach.
        signal.signal(signal.SIGTERM, _end)
        return _mutants(arguments)
    from unigrad_conformance.checking import check_all
    from unigrad_conformance.junit import junit_xml
    from unigrad_conformance.runner import Limits

    _require_distinct(arguments)
    limits = Limits(arguments.test_timeout, arguments.timeout, arguments.memory)
    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unigrad-results-")))
        folder = _folder(arguments.results) or temporary
        paths = (arguments.json, arguments.junit, arguments.html)
        as_json, as_junit, as_html = (stack.enter_context(Output(path)) for path in paths)
        outcome = check_all(arguments.targets, folder, pattern=arguments.pattern, jobs=arguments.jobs, limits=limits)
        unwritten = list(outcome.unwritten)
        files: list[tuple[Output, Callable[[], str]]] = [
            (as_json, outcome.json),
            (as_junit, lambda: junit_xml(outcome.sessions)),
            (as_html, lambda: _page(outcome.sessions)),
        ]
        for output, text in files:
            try:
                output.write(text)
            except OutputError as error:
                unwritten.append(str(error))
        for message in unwritten:
            print(f"unigrad: {message}", file=sys.stderr)
        print(outcome.text)
        return outcome.code or (_USAGE if unwritten else 0)


def _require_distinct(arguments: argparse.Namespace) -> None:
    asked = {name: getattr(arguments, name) for name in ("json", "junit", "html")}
    seen: dict[Path, str] = {}
    for name, path in asked.items():
        if path is None or str(path).startswith("/dev/"):
            continue
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise _Mistake(f"--{other} and --{name} name the same file, {path}; give each a file of its own")


def _end(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _mutants(arguments: argparse.Namespace) -> int:
    if any((arguments.targets, arguments.pattern, arguments.json, arguments.junit, arguments.html, arguments.results)):
        raise _Mistake("check --mutants takes no names, -k, --json, --junit, --html or --results")
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


def _report(arguments: argparse.Namespace) -> int:
    from unigrad_conformance.report import matrix, report_text
    from unigrad_conformance.results import load

    _require(*(["jinja2"] if arguments.html else []))
    sessions = load(arguments.folder)
    with Output(arguments.html) as output:
        text = matrix(sessions, counts=False).markdown() if arguments.markdown else report_text(sessions)
        print(printable(text))
        output.write(lambda: _page(sessions))
    return 0


def _page(sessions: Sequence[Session]) -> str:
    from unigrad_conformance.page import html_page  # needs jinja2, which the base does not

    return html_page(sessions)


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
    with Output(arguments.json) as output:
        code, data = bench.main(arguments.names, arguments.pairs, warmups, arguments.only)
        output.write(f"{json.dumps(data, indent=1)}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

"""Processes of `unigrad bench`: several at once, each with what it printed last."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console

__all__ = ["last_lines"]

LIMIT_S = 600


def last_lines(runs: Sequence[Sequence[str]], variables: Mapping[str, str]) -> list[str]:
    """Run ``python -m`` side by side and return the last line that each printed.

    Parameters
    ----------
    runs
        For each process its module and arguments.
    variables
        Set in the environment of each.

    Raises
    ------
    subprocess.CalledProcessError
        If one fails; what it wrote to standard error is shown.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *run],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for run in runs
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode:
            Console(stderr=True).print(errors, markup=False, soft_wrap=True)
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return [printed.splitlines()[-1] for printed, _ in outputs]

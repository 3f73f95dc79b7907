"""pytest plugin that puts one mutant into the process before the tests run.

Given to pytest after the suite's own plugin: ``-p unigrad_conformance.mutants_plugin --unigrad-mutant=NAME``.
"""

from __future__ import annotations

import pytest

from unigrad_conformance import mutation
from unigrad_conformance.fixtures import BACKEND

_OPTION = "--unigrad-mutant"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the mutant."""
    parser.getgroup("unigrad").addoption(_OPTION, metavar="NAME", help="fault to put into the backend under test")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Put the mutant in, once the backend is loaded and before the suite is imported."""
    name = config.getoption(_OPTION)
    known = mutation.load()
    if name not in known:
        raise pytest.UsageError(f"{_OPTION} takes the name of a mutant, not {name!r}")
    try:
        mutation.apply(known[name], config.stash[BACKEND].spec.package)
    except mutation.MutationError as error:
        raise pytest.UsageError(str(error)) from error

"""A backend's modules and samples have the functions of their protocols (clause A6): run this first while writing a backend."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import pytest

import unigrad
from unigrad.interface import MODULES, check_interface
from unigrad.samples import NoSampleError, Operations, Samples

pytestmark = pytest.mark.clause("A6")


def functions_of(protocol):
    """Return the names of the functions that a protocol lists."""
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"]


DECLARE = """
import importlib, sys
import unigrad
before = set(sys.modules)
importlib.import_module(sys.argv[1])
print(*sorted(set(sys.modules) - before))
"""


def test_the_declaration_imports_neither_framework_nor_modules(backend):
    """It is read where the framework is not installed, to say how to get it."""
    result = subprocess.run([sys.executable, "-c", DECLARE, backend.spec.package], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    imported = set(result.stdout.split())
    assert backend.spec.package in imported
    assert not imported & {backend.spec.framework, *(f"{backend.spec.package}.{part}" for part in MODULES)}


def test_every_function_of_the_modules_is_there(backend):
    faults = check_interface(backend)
    assert not faults, "\n".join(["of the functions in unigrad.protocols:", *faults])


def test_every_function_of_the_samples_is_there(backend, samples):
    faults = []
    for name in functions_of(Samples):
        wanted = list(inspect.signature(getattr(Samples, name)).parameters)[1:]
        function = getattr(samples, name, None)
        if not callable(function):
            faults.append(f"{samples.__name__}.{name} is missing")
        elif list(inspect.signature(function).parameters) != wanted:
            faults.append(f"{samples.__name__}.{name} takes {inspect.signature(function)}; the protocol says {wanted}")
    faults += [
        f"{samples.__name__}.{name} is missing" for name in Samples.__annotations__ if not hasattr(samples, name)
    ]
    assert not faults, "\n".join(["of what stands in unigrad.samples.Samples:", *faults])


def test_every_operation_of_the_samples_is_there(samples):
    lacking, faults = [], []
    for name in functions_of(Operations):
        try:
            if not callable(getattr(samples.operations, name, None)):
                faults.append(name)
        except NoSampleError:
            lacking.append(name)
    assert not faults, f"missing in {samples.__name__}.operations (NoSampleError if there is none): {', '.join(faults)}"
    if lacking:
        raise NoSampleError(f"the framework has no {', '.join(lacking)}")


def test_the_samples_belong_to_the_backend(backend, samples):
    """Where two backends of one framework are installed, the other one would be tested in silence."""
    found = unigrad.backend_of(samples.leaf(np.ones(2, "float32")))
    assert found.spec.name == backend.spec.name, (
        f"objects of {backend.spec.framework} are served by backend {found.spec.name!r}; uninstall one"
    )

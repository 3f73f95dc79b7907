"""Fixtures of the suite: the backend under test, its samples, recording, guarantees and the seed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import unigrad
from unigrad.protocols import Backend, Guarantee
from unigrad_conformance.accuracy import Noted, faults
from unigrad_conformance.observations import Observation, observe

__all__ = ["BACKEND", "OBSERVED", "Record", "backend", "guarantee", "record", "samples"]

BACKEND = pytest.StashKey[Backend]()
OBSERVED = pytest.StashKey[list[Observation]]()


class Record:
    """Record observations of one test, for the comparison of backends.

    Parameters
    ----------
    backend
        The backend, to turn native tensors into arrays.
    observed
        List that takes the observations.
    samples
        The samples that the test uses, which tell the functions behind its values; None for a test without.
    """

    def __init__(self, backend: Backend, observed: list[Observation], samples: Noted | None = None) -> None:
        self._backend = backend
        self._observed = observed
        self._samples = samples

    def __call__(
        self,
        name: str,
        value: Any,
        *,
        terms: int = 0,
        factor: float = 4.0,
        dtype: str | None = None,
        scale: float | None = None,
        reason: str = "",
        choice: bool = False,
    ) -> None:
        """Record one value; another backend's must lie within ``factor * eps(dtype) * terms * scale``.

        The bound is wider by the error of the least accurate elementary function that the test has used, if the backend states one.

        Parameters
        ----------
        name
            Unique within the test.
        value
            A native tensor, NumPy array or float; or, compared exactly, an int, bool, str, None, list or set of
            these; or a mapping of names to such values, recorded as the set of its names and one value each.
        terms
            Length of the longest sum, or the depth, that rounding can go through; 0 asks for equal values.
        factor
            Small factor for the roundings per term.
        dtype
            Dtype in which was computed, if it is not that of the value.
        scale
            Size of the terms, where their sum cancels; default: largest finite absolute value.
        reason
            Why the bound is what it is; required for floating-point values.
        choice
            The derivative does not exist here: a difference is flagged and is no failure.
        """
        if isinstance(value, Mapping):
            self(f"{name}/names", set(value), choice=choice)
            for key, item in value.items():
                self(
                    f"{name}/{key}",
                    item,
                    terms=terms,
                    factor=factor,
                    dtype=dtype,
                    scale=scale,
                    reason=reason,
                    choice=choice,
                )
            return
        if any(known.name == name for known in self._observed):
            raise ValueError(f"{name!r} was already recorded in this test")
        if self._backend.arrays.is_tensor(value):
            value = self._backend.arrays.to_numpy(value)
        made = observe(name, value, terms=terms, factor=factor, scale=scale, dtype=dtype, reason=reason, choice=choice)
        self._observed.append(self._widened(made))

    def _widened(self, made: Observation) -> Observation:
        found = self._samples.least_accurate(made.dtype) if self._samples is not None and made.terms else None
        if found is None:
            return made
        function, accuracy = found
        why = (
            f"wider by {accuracy.error:.2g} of the largest value: {function} in {made.dtype} on {self._backend.spec.name}, "
            f"{accuracy.reason}"
        )
        return replace(made, error=accuracy.error, widened=why)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the loaded backend under test."""
    return request.config.stash[BACKEND]


@pytest.fixture(scope="session")
def samples(backend: Backend) -> Any:
    """Return the module ``samples`` of the backend, noting what is used; see ``unigrad.samples.Samples``."""
    name = f"{backend.spec.package}.samples"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        pytest.fail(
            f"backend {backend.spec.name!r} has no module {name}, from which the suite takes its models", pytrace=False
        )
    wrong = faults(module)
    if wrong:
        pytest.fail(f"{name}.accuracy: {'; '.join(wrong)}", pytrace=False)
    return Noted(module)


@pytest.fixture
def record(request: pytest.FixtureRequest, backend: Backend) -> Record:
    """Return the callable that records observations; see :class:`Record`."""
    noted = request.getfixturevalue("samples") if "samples" in request.fixturenames else None
    return Record(backend, request.node.stash.setdefault(OBSERVED, []), noted)


@pytest.fixture
def guarantee(backend: Backend) -> Callable[[Guarantee], str]:
    """Return a function that gives what the backend declares for a guarantee."""

    def declared(which: Guarantee) -> str:
        stated = backend.spec.guarantees.get(which)
        if stated is None:
            pytest.fail(
                f"backend {backend.spec.name!r} declares nothing for Guarantee.{which.name} ({which.value}); "
                "its BackendSpec.guarantees must say 'kept', the name of an exception, or 'undetected'",
                pytrace=False,
            )
        return stated

    return declared


@pytest.fixture(autouse=True)
def _nothing_used(request: pytest.FixtureRequest) -> None:
    """Start every test with no elementary function noted."""
    if "samples" in request.fixturenames:
        request.getfixturevalue("samples").used.clear()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random state, whichever tests ran before."""
    unigrad.seed(0)

"""Fixtures of the suite: the backend under test, its samples, recording, guarantees and the seed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import unigrad
from unigrad.protocols import Backend, Guarantee
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
    """

    def __init__(self, backend: Backend, observed: list[Observation]) -> None:
        self._backend = backend
        self._observed = observed

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
        if self._backend.block.is_tensor(value):
            value = self._backend.block.to_numpy(value)
        self._observed.append(
            observe(name, value, terms=terms, factor=factor, scale=scale, dtype=dtype, reason=reason, choice=choice)
        )


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Return the loaded backend under test."""
    return request.config.stash[BACKEND]


@pytest.fixture(scope="session")
def samples(backend: Backend) -> Any:
    """Return the module ``samples`` of the backend; see ``unigrad.samples.Samples``."""
    name = f"{backend.spec.package}.samples"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
    pytest.fail(
        f"backend {backend.spec.name!r} has no module {name}, from which the suite takes its models", pytrace=False
    )


@pytest.fixture
def record(request: pytest.FixtureRequest, backend: Backend) -> Record:
    """Return the callable that records observations; see :class:`Record`."""
    return Record(backend, request.node.stash.setdefault(OBSERVED, []))


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
def _seeded() -> None:
    """Start every test from the same random state, whichever tests ran before."""
    unigrad.seed(0)

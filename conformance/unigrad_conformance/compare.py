"""Whether two backends observed the same: pure functions over observations and sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from unigrad_conformance.observations import Observation
from unigrad_conformance.results import Session

__all__ = [
    "REFERENCE",
    "Agreement",
    "Comparison",
    "Difference",
    "Measured",
    "agreements",
    "compare",
    "measured",
    "widened_of",
]

REFERENCE = "numpy"
"""Name of the backend with which all others are compared."""


@dataclass(frozen=True)
class Comparison:
    """Two observations of one quantity.

    Parameters
    ----------
    label
        Empty if they agree; else ``"value" "not a number" "infinity" "shape" "dtype" "kind" "reason" "missing"``
        or ``"exact value"``.
    size, bound
        Largest absolute difference per element and the larger of the two stated bounds.
    relative
        ``size`` over the largest finite absolute value of both.
    where
        Index of the first element that differs by more than the bound, or an empty text.
    """

    label: str = ""
    size: float = 0.0
    bound: float = 0.0
    relative: float = 0.0
    where: str = ""

    @property
    def ratio(self) -> float:
        """Size over bound; 0 for no difference, infinity where none is allowed."""
        if self.size == 0:
            return 0.0
        return self.size / self.bound if self.bound else float("inf")


@dataclass(frozen=True)
class Difference:
    """One quantity on which two backends differ; ``choice`` if no derivative exists there (clause X2)."""

    test: str
    name: str
    comparison: Comparison
    reason: str
    choice: bool


@dataclass(frozen=True)
class Measured:
    """One quantity that a test recorded on the reference (``left``), on another backend (``right``), or on both."""

    test: str
    name: str
    left: Observation | None
    right: Observation | None
    comparison: Comparison

    @property
    def known(self) -> Observation:
        """The observation of the reference, or the only one."""
        only = self.left or self.right
        assert only is not None
        return only

    @property
    def reason(self) -> str:
        """Why the bound is what it is, with what a backend states of the functions behind the value."""
        widened = [one.widened for one in (self.left, self.right) if one is not None and one.widened]
        return "; ".join([self.known.reason, *widened])

    @property
    def choice(self) -> bool:
        """Whether no derivative exists here (clause X2)."""
        return any(one is not None and one.choice for one in (self.left, self.right))


@dataclass(frozen=True)
class Agreement:
    """One backend against the reference.

    Parameters
    ----------
    backend, reference
        Names.
    compared
        Number of observations.
    worst, worst_at
        Largest ratio of difference to bound of the observations that are no choices, and where.
    differences
        What differs, in the order of the tests.
    widened
        Why bounds are wider, by what a backend states of its elementary functions, and of how many observations.
    """

    backend: str
    reference: str
    compared: int
    worst: float
    worst_at: str
    differences: tuple[Difference, ...]
    widened: Mapping[str, int] = field(default_factory=dict)

    @property
    def faults(self) -> list[Difference]:
        """Differences that are no choices."""
        return [difference for difference in self.differences if not difference.choice]


def compare(left: Observation, right: Observation) -> Comparison:
    """Compare two observations within the larger of their two bounds.

    NaN equals NaN, and an infinity the same infinity; NaN against a number is a difference of its own kind.
    """
    if (left.array is None) != (right.array is None):
        return Comparison("kind")
    if left.array is None or right.array is None:
        return Comparison() if _same(left.exact, right.exact) else Comparison("exact value", where=_both(left, right))
    if left.array.shape != right.array.shape:
        return Comparison("shape", where=f"{left.array.shape} against {right.array.shape}")
    if left.array.dtype != right.array.dtype or left.dtype != right.dtype:
        return Comparison("dtype", where=f"{left.dtype or left.array.dtype} against {right.dtype or right.array.dtype}")
    if (left.reason, left.terms, left.factor) != (right.reason, right.terms, right.factor):
        return Comparison("reason", where=f"bounds with other reasons: {left.reason!r} against {right.reason!r}")
    return _compare_arrays(left.array, right.array, max(left.bound, right.bound))


def _same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


def _both(left: Observation, right: Observation) -> str:
    return f"{left.exact!r} against {right.exact!r}"


def _compare_arrays(left: npt.NDArray[Any], right: npt.NDArray[Any], bound: float) -> Comparison:
    wide = np.float64 if left.dtype.kind == "f" else object
    first, second = left.astype(wide), right.astype(wide)
    if left.dtype.kind == "f":
        for label, test in (("not a number", np.isnan), ("infinity", np.isinf)):
            apart = test(first) != test(second)
            if label == "infinity":
                apart |= np.isinf(first) & np.isinf(second) & (first != second)
            if apart.any():
                return Comparison(label, float("inf"), bound, float("inf"), _index(apart))
        finite = np.isfinite(first)
        first, second = np.where(finite, first, 0.0), np.where(finite, second, 0.0)
    gap = np.abs(first - second)
    if not gap.size:
        return Comparison(bound=bound)
    size = float(gap.max())
    largest = float(max(np.abs(first).max(), np.abs(second).max()))
    relative = size / largest if largest else 0.0
    if size <= bound:
        return Comparison("", size, bound, relative)
    return Comparison("value", size, bound, relative, _index(gap > bound))


def _index(apart: npt.NDArray[Any]) -> str:
    index = np.argwhere(apart)[0]
    return f"[{', '.join(str(int(i)) for i in index)}]" if index.size else ""


def agreements(sessions: Sequence[Session]) -> list[Agreement]:
    """Compare every session with the reference, over the tests that passed on both."""
    reference = next((session for session in sessions if session.backend == REFERENCE), None)
    if reference is None:
        return []
    return [_agreement(reference, session) for session in sessions if session is not reference]


def measured(reference: Session, session: Session) -> Iterator[Measured]:
    """Compare each quantity of the tests that passed on both, in the order of the tests."""
    known = {result.id: result for result in reference.results if result.outcome == "passed"}
    for result in session.results:
        if result.outcome != "passed" or result.id not in known:
            continue
        left = {observation.name: observation for observation in known[result.id].observations}
        right = {observation.name: observation for observation in result.observations}
        for name in dict.fromkeys((*left, *right)):
            if name in left and name in right:
                found = compare(left[name], right[name])
            else:
                found = Comparison(
                    "missing", where=f"only on {session.backend if name in right else reference.backend}"
                )
            yield Measured(result.id, name, left.get(name), right.get(name), found)


def widened_of(found: Iterable[Measured]) -> dict[str, int]:
    """Return why bounds are wider -> of how many observations, the most frequent first."""
    reasons = (one.widened for each in found for one in (each.left, each.right) if one is not None and one.widened)
    return dict(Counter(reasons).most_common())


def _agreement(reference: Session, session: Session) -> Agreement:
    compared, worst, worst_at, differences = 0, 0.0, "", []
    found = list(measured(reference, session))
    for one in found:
        compared += 1
        if one.comparison.label:
            differences.append(Difference(one.test, one.name, one.comparison, one.reason, one.choice))
        if not one.choice and one.comparison.ratio > worst:
            worst, worst_at = one.comparison.ratio, f"{one.test} {one.name}"
    return Agreement(
        session.backend, reference.backend, compared, worst, worst_at, tuple(differences), widened_of(found)
    )

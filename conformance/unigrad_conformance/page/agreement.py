"""How far one backend is from the reference: counts, the distribution, and the observations that stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unigrad_conformance.compare import REFERENCE, Measured, measured, widened_of
from unigrad_conformance.observations import Observation
from unigrad_conformance.page.chart import Bar, bars
from unigrad_conformance.page.text import shorten
from unigrad_conformance.results import Session

__all__ = ["Compared", "Observed", "compared_of"]

_LARGEST = 8  # observations within their bounds that are listed
_MOST_FAULTS = 200
_MOST_ELEMENTS = 6  # of an array that is shown whole
_MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Observed:
    """One observation in a list: sizes as texts, and both values."""

    test: str
    name: str
    ratio: str
    size: str
    bound: str
    what: str
    reason: str
    left: str
    right: str


@dataclass(frozen=True)
class Compared:
    """One backend against the reference.

    Parameters
    ----------
    session
        Index of the backend.
    total, equal, within, beyond
        Observations that are no choices: all of them, the equal ones, the ones within their bounds, the ones beyond.
    worst
        Largest share of a bound, as text.
    bars, unsized
        The distribution of what is not equal, and whether some of it has no size.
    faults, largest
        Those beyond, the furthest first, and the largest within.
    choices
        Number of observations where no derivative exists.
    chosen
        The choices that differ.
    widened
        Why bounds are wider, by what a backend states of its elementary functions, and of how many observations.
    """

    session: int
    total: int
    equal: int
    within: int
    beyond: int
    worst: str
    bars: list[Bar]
    unsized: bool
    faults: list[Observed]
    largest: list[Observed]
    choices: int
    chosen: list[Observed]
    widened: dict[str, int]


def compared_of(sessions: Sequence[Session]) -> list[Compared]:
    """Compare each backend with the reference; nothing if that was not checked along."""
    reference = next((session for session in sessions if session.backend == REFERENCE), None)
    if reference is None:
        return []
    return [
        _compared(index, list(measured(reference, session)))
        for index, session in enumerate(sessions)
        if session is not reference
    ]


def _compared(index: int, found: Sequence[Measured]) -> Compared:
    smooth = [one for one in found if not one.choice]
    choices = [one for one in found if one.choice]
    faults = [one for one in smooth if one.comparison.label]
    faults.sort(key=lambda one: (_sized(one), -one.comparison.ratio))
    near = [one for one in smooth if not one.comparison.label and one.comparison.ratio]
    near.sort(key=lambda one: -one.comparison.ratio)
    return Compared(
        session=index,
        total=len(smooth),
        equal=len(smooth) - len(faults) - len(near),
        within=len(near),
        beyond=len(faults),
        worst=f"{near[0].comparison.ratio:.2g}" if near else "0",
        bars=bars(smooth),
        unsized=any(not _sized(one) for one in faults),
        faults=[_observed(one) for one in faults[:_MOST_FAULTS]],
        largest=[_observed(one) for one in near[:_LARGEST]],
        choices=len(choices),
        chosen=[_observed(one) for one in choices if one.comparison.label],
        widened=widened_of(found),
    )


def _sized(one: Measured) -> bool:
    return one.comparison.label in ("", "value")


def _observed(one: Measured) -> Observed:
    found = one.comparison
    sized = _sized(one)
    where = f"at {found.where}" if found.where[:1] == "[" else found.where
    return Observed(
        one.test,
        one.name,
        f"{found.ratio:.3g}" if sized else "",
        f"{found.size:.3g}" if sized else "",
        f"{found.bound:.3g}" if sized else "",
        shorten(" ".join(filter(None, ("" if sized else found.label, where))), _MOST_CHARACTERS),
        one.reason,
        _value(one.left, found.where),
        _value(one.right, found.where),
    )


def _value(observation: Observation | None, where: str) -> str:
    """Return a short value whole, of a long one the element that differs."""
    if observation is None:
        return "none"
    array = observation.array
    if array is None:
        return shorten(repr(observation.exact), _MOST_CHARACTERS)
    if array.size > _MOST_ELEMENTS and where[:1] == "[":
        index = tuple(int(place) for place in where.strip("[]").split(","))
        return f"{array[index]:.9g}" if array.dtype.kind == "f" else str(array[index])
    text = np.array2string(array, precision=9, threshold=_MOST_ELEMENTS, edgeitems=1, separator=", ")
    return shorten(" ".join(text.split()), _MOST_CHARACTERS)

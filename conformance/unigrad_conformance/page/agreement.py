"""How far one backend is from the reference: counts, the distribution, and the observations that stand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unigrad_conformance.compare import REFERENCE, Measured, measured
from unigrad_conformance.observations import Observation
from unigrad_conformance.page.chart import Bar, bars
from unigrad_conformance.page.text import shorten
from unigrad_conformance.results import Session

__all__ = ["Compared", "Observed", "compared_of"]

_LARGEST = 8  # observations within their bounds that are listed
_MOST_FAULTS = 200


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
    bars
        The distribution of what is not equal.
    faults, largest
        Those beyond, and the largest within.
    choices
        Number of observations where no derivative exists.
    chosen
        The choices that differ.
    """

    session: int
    total: int
    equal: int
    within: int
    beyond: int
    worst: str
    bars: list[Bar]
    faults: list[Observed]
    largest: list[Observed]
    choices: int
    chosen: list[Observed]


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
        faults=[_observed(one) for one in faults[:_MOST_FAULTS]],
        largest=[_observed(one) for one in near[:_LARGEST]],
        choices=len(choices),
        chosen=[_observed(one) for one in choices if one.comparison.label],
    )


def _observed(one: Measured) -> Observed:
    found = one.comparison
    sized = found.label in ("", "value")
    what = " ".join(filter(None, (found.label or "within", f"at {found.where}" if found.where[:1] == "[" else "")))
    if found.where and found.where[:1] != "[":
        what = f"{what}: {found.where}"
    return Observed(
        one.test,
        one.name,
        f"{found.ratio:.3g}" if sized else "",
        f"{found.size:.3g}" if sized else "",
        f"{found.bound:.3g}" if sized else "",
        shorten(what, 400),
        one.known.reason,
        _value(one.left),
        _value(one.right),
    )


def _value(observation: Observation | None) -> str:
    if observation is None:
        return "none"
    if observation.array is None:
        return shorten(repr(observation.exact), 400)
    text = np.array2string(observation.array, precision=9, threshold=8, edgeitems=2, separator=", ")
    return shorten(" ".join(text.split()), 400)

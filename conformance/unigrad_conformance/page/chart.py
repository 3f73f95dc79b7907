"""The distribution of differences against their bounds, as bars on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from unigrad_conformance.compare import Measured

__all__ = ["Bar", "Tick", "bars", "ticks"]

_LOWEST = -5  # decade below which all differences share one bar
_HALVES = -2 * _LOWEST
_COLUMNS = _HALVES + 4  # below, the half decades up to the bound, up to 10, more, and what has no size
_PLOT = 96.0  # height in pixels
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Bar:
    """One bar: left edge and width in percent, height in pixels, and whether it stands beyond the bound."""

    left: float
    width: float
    height: float
    count: int
    beyond: bool
    label: str


@dataclass(frozen=True)
class Tick:
    """One mark of the axis: its place in percent and its text."""

    left: float
    label: str


def _edge(column: int) -> float:
    return round(100 * column / _COLUMNS, 3)


def _power(exponent: int) -> str:
    return "1" if exponent == 0 else "10" if exponent == 1 else f"10{str(exponent).translate(_SUPERSCRIPT)}"


def _column(one: Measured) -> int:
    ratio = one.comparison.ratio
    if one.comparison.label not in ("", "value") or ratio == math.inf:
        return _HALVES + 3
    if ratio > 1:
        return _HALVES + (1 if ratio <= 10 else 2)
    return min(max(math.ceil(2 * (math.log10(ratio) - _LOWEST)), 0), _HALVES)


def _label(column: int) -> str:
    if column == _HALVES + 3:
        return "no size, or no difference allowed"
    if column > _HALVES:
        return "1 to 10 times the bound" if column == _HALVES + 1 else "more than 10 times the bound"
    high = 10 ** (_LOWEST + column / 2)
    return f"up to {high:.2g} of the bound"


def bars(measured: Sequence[Measured]) -> list[Bar]:
    """Return the bars of what is not equal, the empty ones left out."""
    counts = [0] * _COLUMNS
    for one in measured:
        if one.comparison.label or one.comparison.ratio:
            counts[_column(one)] += 1
    return [
        Bar(
            _edge(column),
            _edge(1),
            round(max(2.0, _PLOT * number / max(counts)), 1),
            number,
            column > _HALVES,
            _label(column),
        )
        for column, number in enumerate(counts)
        if number
    ]


def ticks() -> list[Tick]:
    """Return the marks of the axis, below the bound and above it."""
    marks = [Tick(_edge(2 * decade + 1), _power(_LOWEST + decade)) for decade in range(-_LOWEST + 1)]
    return [*marks, Tick(_edge(_HALVES + 2), _power(1)), Tick(_edge(_HALVES + 3), "∞")]

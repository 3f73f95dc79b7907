"""One stream of random numbers of unigrad's own: MindSpore keeps its random state in operations, where it can't be restored.

Each random operation that the dispatch mode sees is replaced by a new one with the next two seeds of the stream; a new
operation with the same seeds draws the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mindspore import ops

__all__ = ["DRAWS", "UNSEEDED", "Stream", "stream"]

_MASK = 2**64 - 1
_LARGEST = 2**31 - 2


class Stream:
    """A seed and the number of seeds drawn so far."""

    __slots__ = ("drawn", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.drawn = 0

    def next(self) -> tuple[int, int]:
        """Return two seeds from 1 to ``2**31 - 2``: 0 would make MindSpore draw them from the clock."""
        self.drawn += 1
        mixed = _mixed(_mixed(self.seed) + self.drawn)
        return 1 + (mixed & 0xFFFFFFFF) % _LARGEST, 1 + (mixed >> 32) % _LARGEST


def _mixed(number: int) -> int:
    """Spread the bits of a number, so that seeds in a row have nothing in common (the finisher of SplitMix64)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


stream = Stream(int.from_bytes(os.urandom(4), "little"))
"""The stream of the process."""


def _dropout(args: tuple[Any, ...], first: int, second: int) -> tuple[Any, ...]:
    _, name, (x, keep, *_) = args
    return ops.Dropout(keep, Seed0=first, Seed1=second), name, (x, keep, first, second)


def _seeded(args: tuple[Any, ...], first: int, second: int) -> tuple[Any, ...]:
    return type(args[0])(first, second), *args[1:]


def _multinomial(args: tuple[Any, ...], first: int, second: int) -> tuple[Any, ...]:
    return ops.Multinomial(first, second, args[0].dtype), *args[1:]


def _categorical(args: tuple[Any, ...], first: int, second: int) -> tuple[Any, ...]:
    primitive, name, (logits, count, *_) = args
    return primitive, name, (logits, count, first)


DRAWS: Mapping[str, Callable[[tuple[Any, ...], int, int], tuple[Any, ...]]] = {
    "Dropout": _dropout,
    "StandardNormal": _seeded,
    "UniformReal": _seeded,
    "UniformInt": _seeded,
    "StandardLaplace": _seeded,
    "Bernoulli": _seeded,
    "RandomShuffle": _seeded,
    "Multinomial": _multinomial,
    "RandomCategorical": _categorical,
}
"""Name of a random operation -> its arguments with seeds of ours."""

UNSEEDED = frozenset(
    {
        "Dropout2D",
        "Dropout3D",
        "Gamma",
        "LogNormalReverse",
        "MultinomialWithReplacement",
        "ParameterizedTruncatedNormal",
        "Poisson",
        "RandomChoiceWithMask",
        "RandomGamma",
        "RandomPoisson",
        "RandpermV2",
        "StatelessDropOutGenMask",
        "TruncatedNormal",
    }
)
"""Random operations that take no seeds from us, so that a recompute could not draw the same."""

"""What was frozen and unfrozen by pattern, in order, so that what is created later follows too."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from unigrad import names

__all__ = ["Rules"]


class Rules:
    """Patterns of names with what was asked for them last, and the tensors that have followed already.

    A tensor follows once: what is done to it natively afterwards stands. Tensors are held weakly.
    """

    def __init__(self) -> None:
        self._asked: list[tuple[str, bool]] = []
        self._followed: dict[str, Callable[[], Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def ask(self, pattern: str, frozen: bool) -> None:
        """Note that a pattern was frozen or unfrozen; what it asked of names that it covers is past."""
        self._asked = [(old, was) for old, was in self._asked if not names.matches(old, pattern)]
        self._asked.append((pattern, frozen))

    def frozen(self, found: Iterable[str]) -> bool:
        """Whether the last pattern that fits one of a tensor's names froze it."""
        listed = list(found)
        return next(
            (
                frozen
                for pattern, frozen in reversed(self._asked)
                if any(names.matches(name, pattern) for name in listed)
            ),
            False,
        )

    def follow(self, name: str, tensor: Any) -> bool:
        """Note that the tensor of a name has followed; whether it had not."""
        known = self._followed.get(name)
        if known is not None and known() is tensor:
            return False
        try:
            self._followed[name] = weakref.ref(tensor)
        except TypeError:  # of a type that allows no weak reference, or no tensor
            self._followed[name] = lambda: tensor
        return True

    def adopt(self, other: Rules) -> None:
        """Take over the patterns of another, for a copy of its model."""
        self._asked = list(other._asked)

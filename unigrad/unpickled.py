"""What lives with its process: copied or pickled, it says what to do instead."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from unigrad.errors import UnsupportedError

__all__ = ["Unpickled"]


class Unpickled:
    """Base of a class whose objects are neither pickled nor copied, unless the class says how to copy them."""

    __slots__ = ()

    _instead: ClassVar[str]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UnsupportedError(f"this {type(self).__name__} can't be taken apart for pickle or copy: {self._instead}")

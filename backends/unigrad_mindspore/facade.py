"""A Cell that is another one in everything but its forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakValueDictionary

from unigrad_mindspore.pynative import make_cell

__all__ = ["facade"]

_OWN = ("unigrad_plain", "unigrad_run", "enabled")


class _Facade:
    """Put before the class of a Cell: the forward goes through ``run``, all else is the Cell's own.

    The instance shares the ``__dict__`` of the plain Cell, so parameters, buffers, children, hooks and modes are the same
    objects; only three slots are its own.
    """

    __slots__ = ()

    # A property is found before the shared dictionary, where an assigned construct of the plain Cell stands.
    @property
    def construct(self) -> Callable[..., Any]:
        return self._unigrad_construct

    def _unigrad_construct(self, /, *args: Any, **kwargs: Any) -> Any:
        plain = self.unigrad_plain.construct
        if not self.enabled:
            return plain(*args, **kwargs)
        if getattr(plain, "__self__", None) is None:
            plain = MethodType(_without_self(plain), self.unigrad_plain)
        return self.unigrad_run(plain, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or name == "__dict__":
            object.__setattr__(self, name, value)
        else:
            setattr(self.unigrad_plain, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.unigrad_plain, name)

    def __copy__(self) -> Any:
        return _make(copy.copy(self.unigrad_plain), self.unigrad_run, self.enabled)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = _make(copy.deepcopy(self.unigrad_plain, memo), self.unigrad_run, self.enabled)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _make, (self.unigrad_plain, self.unigrad_run, self.enabled)

    def __del__(self) -> None:
        """Do nothing: a Cell deletes what was compiled for it, which here is the plain Cell's."""


def _without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


_classes: WeakValueDictionary[type, type] = WeakValueDictionary()


def _class(base: type) -> type:
    made = _classes.get(base)
    if made is None:
        body = {
            "__slots__": _OWN,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
        }
        made = _classes[base] = type(base.__name__, (_Facade, base), body)
    return made


def _make(plain: Any, run: Callable[..., Any], enabled: bool) -> Any:
    inner = plain
    while isinstance(inner, _Facade):  # a facade of a facade is of the plain class too
        inner = inner.unigrad_plain
    made = make_cell(_class(type(inner)))
    for name, value in zip(("__dict__", *_OWN), (vars(plain), plain, run, enabled), strict=True):
        object.__setattr__(made, name, value)
    return made


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a Cell that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    return _make(model, run, True)

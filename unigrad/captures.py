"""The name under which a function sees an object that is not its argument, for messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["name_in"]

DEPTH = 6


def name_in(function: Any, wanted: Callable[[Any], bool]) -> str | None:
    """Return the expression by which a function can reach an object, e.g. ``hidden`` or ``self.cache[0]``; None if not found.

    Looked at are the variables of its closure, the globals that it names, defaults, the object of a bound method,
    arguments of a partial, and what these hold as attributes, items and values.

    Parameters
    ----------
    function
        The function.
    wanted
        Whether an object is the one.

    Examples
    --------
    >>> def outer():
    ...     hidden = [3]
    ...     return lambda x: x + hidden[0]
    >>> name_in(outer(), lambda value: value == [3])
    'hidden'
    """
    stack: list[tuple[str, Any, int]] = [("", function, 0)]
    seen: set[int] = set()
    while stack:
        name, value, depth = stack.pop(0)
        if id(value) in seen or depth > DEPTH:
            continue
        seen.add(id(value))
        if name and wanted(value):
            return name
        stack += [(inner, child, depth + 1) for inner, child in _below(name, value)]
    return None


def _below(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", child) for key, child in list(value.items()))
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((name, value.func), (f"{name or 'partial'}.args", value.args))
        yield from value.keywords.items()
    elif isinstance(value, type(_below)) or hasattr(value, "__func__"):
        yield from _seen_by(value)
    elif not isinstance(value, type | str | bytes | int | float) and hasattr(value, "__dict__"):
        yield from ((f"{name}.{key}".lstrip("."), child) for key, child in list(vars(value).items()))


def _seen_by(function: Any) -> Iterator[tuple[str, Any]]:
    yield from (("self", getattr(function, "__self__", None)), ("", getattr(function, "__wrapped__", None)))
    plain = getattr(function, "__func__", function)
    code = plain.__code__
    for variable, cell in zip(code.co_freevars, plain.__closure__ or (), strict=True):
        try:
            yield variable, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from ((key, plain.__globals__[key]) for key in code.co_names if key in plain.__globals__)
    names = code.co_varnames[: code.co_argcount]
    defaults = plain.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (plain.__kwdefaults__ or {}).items()

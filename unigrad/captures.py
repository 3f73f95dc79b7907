"""What a function can see that is not its argument: to find the models that it calls, and to name a tensor in a message."""

from __future__ import annotations

import dis
import functools
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

__all__ = ["name_in", "reachable"]

_CALLS = (types.FunctionType, types.MethodType, functools.partial)
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, types.ModuleType})
DEPTH = 6
"""Attributes and items on the way to what is found; functions that call functions may lead any way."""
LONGEST = 1000
"""Containers with more items than this hold data, not models, and are not looked into."""


def reachable(
    function: Any,
    stop: Callable[[Any], bool],
    arguments: Any = (),
    closed: Collection[str] = (),
    everywhere: bool = False,
) -> Iterator[tuple[str, Any]]:
    """Yield what a function can reach, nearest first, each object once.

    Looked at are the variables of its closure, the globals that it names, defaults, the object of a bound method,
    arguments of a partial, helpers of the same package, and what these hold as attributes, items and values.

    Parameters
    ----------
    function
        The function, or an object that is called.
    stop
        Whether what is inside an object is of no interest.
    arguments
        A nesting of further objects to begin at.
    closed
        Packages whose objects are not looked into.
    everywhere
        Whether functions of other packages, which are not closed, are looked into too.

    Yields
    ------
    tuple
        An expression, e.g. ``hidden`` or ``self.cache[0]``, and the object.
    """
    package = _package(function)

    def open_to(found: str) -> bool:
        return found == package or (everywhere and found not in closed)

    waiting: deque[tuple[str, Any, int]] = deque([("arguments", arguments, 0), ("", function, 0)])
    # The objects are kept, so that the id of one made on the way is not used again.
    seen: dict[int, Any] = {}
    while waiting:
        name, value, depth = waiting.popleft()
        kind = type(value)
        if kind in PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        if name:
            yield name, value
            if depth >= DEPTH or kind.__module__.partition(".")[0] in closed or stop(value):
                continue
        deeper = depth if isinstance(value, _CALLS) else depth + 1
        waiting.extend((inner, child, deeper) for inner, child in _below(name, value, open_to))


def name_in(function: Any, wanted: Callable[[Any], bool]) -> str | None:
    """Return the expression by which a function can reach an object; None if it was not found.

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
    return next((name for name, value in reachable(function, wanted) if wanted(value)), None)


def _package(function: Any) -> str:
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    return str(getattr(function, "__module__", None) or type(function).__module__).partition(".")[0]


def _below(name: str, value: Any, open_to: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if len(value) <= LONGEST:
            yield from ((f"{name}[{key!r}]", child) for key, child in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        if len(value) <= LONGEST:
            yield from ((f"{name}[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((name, value.func), (f"{name or 'partial'}.args", value.args), (name or "partial", value.keywords))
    elif isinstance(value, types.MethodType):
        yield from (("self", value.__self__), (name, value.__func__))
    elif isinstance(value, types.FunctionType):
        if not name or open_to(_package(value)):
            yield from _seen_by(value)
    elif isinstance(value, types.ModuleType) or (type(value).__module__.startswith("unigrad.") and not callable(value)):
        return
    elif isinstance(value, type):
        if open_to(_package(value)):
            yield from ((f"{name}.{key}", child) for key, child in vars(value).items() if not callable(child))
    else:
        called = vars(type(value)).get("__call__")
        if not name and isinstance(called, types.FunctionType):
            yield name, called
        prefix = f"{name}." if name else "self."
        yield from ((prefix + key, child) for key, child in list(getattr(value, "__dict__", {}).items()))


def _seen_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield variable, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for key in _global_names(code):
        if key in function.__globals__:
            value = function.__globals__[key]
            if isinstance(value, types.ModuleType):
                held = vars(value)
                yield from ((f"{key}.{inner}", held[inner]) for inner in code.co_names if inner in held)
            else:
                yield key, value
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


@functools.lru_cache(maxsize=1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the globals that a function reads, also inside functions that it defines; attributes have other instructions."""
    found = [item.argval for item in dis.get_instructions(code) if item.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += _global_names(constant)
    return tuple(dict.fromkeys(found))

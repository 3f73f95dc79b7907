"""A native model that is another one in everything but its forward; a backend says what a forward is."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MethodType
from typing import Any
from weakref import WeakValueDictionary

from unigrad.errors import UnsupportedError

__all__ = ["SLOTS", "Facade", "ForwardFacade", "again", "class_of", "make", "plain_of", "run_forward"]

SLOTS = ("__unigrad_plain__", "__unigrad_run__", "enabled")
"""What a facade has of its own, under names that a framework passes over which looks for members to save."""


class Facade:
    """Base of the class that a backend puts before that of a model, and that has the forward and nothing else.

    A facade shares the ``__dict__`` of the plain model, so parameters, buffers, layers inside, hooks and modes are the same
    objects; only :data:`SLOTS` are its own, which the backend's class may declare. ``enabled`` excepted, no name here hides a
    member of the model.

    Attributes
    ----------
    enabled
        Whether the forward is run through what was given; else it is the plain one.
    """

    __slots__ = ()

    enabled: bool
    __unigrad_kind__: type[Facade]
    __unigrad_plain__: Any
    __unigrad_run__: Callable[..., Any]

    @classmethod
    def __unigrad_new__(cls) -> Any:
        """Return an instance without attributes."""
        return object.__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SLOTS:
            object.__setattr__(self, name, value)
        else:
            setattr(self.__unigrad_plain__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__unigrad_plain__, name)

    def __copy__(self) -> Any:
        return again(self, copy.copy(self.__unigrad_plain__))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = memo[id(self)] = again(self, copy.deepcopy(self.__unigrad_plain__, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        try:
            pickle.dumps(self.__unigrad_run__)
        except Exception as cause:
            raise UnsupportedError(
                f"this {type(self).__name__} cannot be saved as a whole: what runs its forward cannot be pickled ({cause}). Save its "
                "state instead, with unigrad.wrap(model).save(path), or pass functions defined at the top of a module"
            ) from cause
        return make, (self.__unigrad_kind__, self.__unigrad_plain__, self.__unigrad_run__, self.enabled)


class ForwardFacade(Facade):
    """Of a model whose forward is its method ``forward``."""

    __slots__ = ()

    @property
    def forward(self) -> Callable[..., Any]:
        """The plain forward, run; a property is found before ``__dict__``, where another forward may have been put."""
        return self.__unigrad_forward__

    def __unigrad_forward__(self, /, *args: Any, **kwargs: Any) -> Any:
        return run_forward(self, self.__unigrad_plain__.forward, args, kwargs)


def make(kind: type[Facade], plain: Any, run: Callable[..., Any], enabled: bool = True) -> Any:
    """Return a facade of a model, which may be one itself.

    Parameters
    ----------
    kind
        The backend's own class, which can be imported by its name.
    plain
        The model.
    run
        Called as ``run(forward, *args, **kwargs)`` by :func:`run_forward`.
    enabled
        See :class:`Facade`.

    Raises
    ------
    UnsupportedError
        If no object can stand for one of the model's class.
    """
    made = class_of(kind, type(plain_of(plain))).__unigrad_new__()
    object.__setattr__(made, "__dict__", vars(plain))
    for name, value in zip(SLOTS, (plain, run, enabled), strict=True):
        object.__setattr__(made, name, value)
    return made


def again(facade: Facade, plain: Any) -> Any:
    """Return a facade of another model of the same class, run as this one is."""
    return make(facade.__unigrad_kind__, plain, facade.__unigrad_run__, facade.enabled)


def plain_of(model: Any) -> Any:
    """Return the model behind all facades."""
    while isinstance(model, Facade):
        model = model.__unigrad_plain__
    return model


def run_forward(facade: Facade, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call a forward of the plain model, through what runs it unless the facade is switched off.

    Parameters
    ----------
    facade
        The facade.
    forward
        The forward as the plain model has it, which may be a function that was assigned; it is handed on as a bound method.
    args, kwargs
        Of the call.
    """
    if not facade.enabled:
        return forward(*args, **kwargs)
    if getattr(forward, "__self__", None) is None:
        forward = _bound(forward, facade.__unigrad_plain__)
    return facade.__unigrad_run__(forward, *args, **kwargs)


def _bound(forward: Callable[..., Any], model: Any) -> MethodType:
    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    with suppress(TypeError, ValueError):  # of what says nothing of its arguments
        own = inspect.signature(call).parameters["model"]
        signature = inspect.signature(forward)
        call.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
    return MethodType(call, model)


_classes: WeakValueDictionary[tuple[type[Facade], type], type[Facade]] = WeakValueDictionary()


def class_of(kind: type[Facade], base: type) -> type[Facade]:
    """Return the class of the facades of models of one class, made when it is first asked for."""
    made = _classes.get((kind, base))
    if made is not None:
        return made
    body = {
        "__slots__": () if kind.__slots__ else SLOTS,
        "__unigrad_kind__": kind,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    instead = "checkpoint a function that calls it instead: unigrad.checkpoint(function, blocks=[model])"
    if any(vars(part).get("__slots__") for part in base.__mro__):  # they would not be shared
        raise UnsupportedError(f"{base.__qualname__} declares __slots__, so that no model can stand for it; {instead}")
    try:
        made = type(base.__name__, (kind, base), body)
    except TypeError as cause:
        raise UnsupportedError(f"no model can stand for a {base.__qualname__} ({cause}); {instead}") from cause
    return _classes.setdefault((kind, base), made)

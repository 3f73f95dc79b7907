"""A module that is another one in everything but its forward."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from contextlib import suppress
from types import MethodType
from typing import Any
from weakref import WeakValueDictionary

import torch

from unigrad.errors import UnsupportedError
from unigrad.tracing import called_not_read
from unigrad_torch.compiled import keep_out, refuse_compiled


@called_not_read
def _refuse(facade: Any) -> None:
    """Refuse in a compiler, which could not read the slots of a facade."""
    keep_out()
    if facade.enabled and torch.is_grad_enabled():
        refuse_compiled(getattr(facade._unigrad_run, "what", "a checkpoint"))


class _Facade:
    """Put before the class of a module: the forward goes through ``run``, all else is the module's own.

    The instance shares the ``__dict__`` of the plain module, so parameters, buffers, children, hooks and modes are
    the same objects; only the three slots are its own.
    """

    __slots__ = ("_unigrad_plain", "_unigrad_run", "enabled")

    @property
    def forward(self) -> Callable[..., Any]:
        # a property is found before ``__dict__``, where some libraries put another forward
        return self._unigrad_forward

    @forward.setter
    def forward(self, function: Callable[..., Any]) -> None:
        self._unigrad_plain.forward = function

    def _unigrad_forward(self, /, *args: Any, **kwargs: Any) -> Any:
        _refuse(self)
        plain = self._unigrad_plain.forward
        if not self.enabled:
            return plain(*args, **kwargs)
        if getattr(plain, "__self__", None) is None:
            plain = _bound(plain, self._unigrad_plain)
        return self._unigrad_run(plain, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__" and issubclass(value, _Facade):  # fully_shard puts a class of its own before this one
            object.__setattr__(self, name, value)
        elif name == "__class__":  # a lazy layer that becomes the ordinary one
            self._unigrad_plain.__class__ = value
            object.__setattr__(self, "__class__", _class(value))
        elif name in _Facade.__slots__:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __copy__(self) -> Any:
        return _make(copy.copy(self._unigrad_plain), self._unigrad_run, self.enabled)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = _make(copy.deepcopy(self._unigrad_plain, memo), self._unigrad_run, self.enabled)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        try:
            pickle.dumps(self._unigrad_run)
        except Exception as cause:
            raise UnsupportedError(
                f"this {type(self).__name__} cannot be saved as a whole: what runs its forward cannot be pickled "
                f"({cause}). Save its state_dict() instead, or pass functions defined at the top of a module"
            ) from cause
        return _make, (self._unigrad_plain, self._unigrad_run, self.enabled)


def _bound(forward: Callable[..., Any], model: Any) -> MethodType:
    """Bind a forward that is no method to its model, as that of a compiled module, or one that was assigned."""

    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    with suppress(TypeError, ValueError):  # of what says nothing of its arguments
        own = inspect.signature(call).parameters["model"]
        signature = inspect.signature(forward)
        call.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()])  # type: ignore[attr-defined]
    return MethodType(call, model)


_classes: WeakValueDictionary[type, type] = WeakValueDictionary()


def _class(base: type) -> type:
    if issubclass(base, _Facade):  # of a facade: one more around the same class
        base = base.__mro__[2]
    made = _classes.get(base)
    if made is None:
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        try:
            made = type(base.__name__, (_Facade, base), names)
        except TypeError as cause:
            raise UnsupportedError(
                f"{base.__qualname__} declares __slots__, so that no module can stand for it; "
                f"checkpoint a function that calls it instead: unigrad.checkpoint(function, blocks=[module])"
            ) from cause
        _classes[base] = made
    return made


def _make(plain: Any, run: Callable[..., Any], enabled: bool) -> Any:
    inner = plain
    while isinstance(inner, _Facade):  # a facade of a facade is of the plain class too
        inner = inner._unigrad_plain
    made = object.__new__(_class(type(inner)))
    object.__setattr__(made, "__dict__", plain.__dict__)
    for name, value in zip(_Facade.__slots__, (plain, run, enabled), strict=True):
        object.__setattr__(made, name, value)
    return made


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a module that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(
            "a script module cannot be given another forward; "
            "pass the module it was made from, or a function that calls it: unigrad.checkpoint(function, blocks=[module])"
        )
    return _make(model, run, True)

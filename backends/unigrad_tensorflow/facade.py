"""A model that is another one in everything but its forward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

from unigrad.errors import UnsupportedError
from unigrad_tensorflow.private import Layer, in_symbolic_call
from unigrad_tensorflow.saving import Restored, config_of, register

__all__ = ["Facade", "facade", "plain_of"]


class Facade:
    """Put before the class of a model: the forward goes through ``run``, all else is the model's own.

    The instance shares the ``__dict__`` of the plain model, so variables, layers inside, losses and the trackers of Keras are the
    same objects; only the slots are its own. Their names keep them from Keras, which saves what stands under other names.
    """

    __slots__ = ("__unigrad_plain__", "__unigrad_run__", "enabled")

    enabled: bool
    __unigrad_plain__: Any
    __unigrad_run__: Callable[..., Any]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Facade.__slots__:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from unigrad_tensorflow.copies import copy_into  # which knows facades

        return copy_into(self, memo)

    def __copy__(self) -> Any:
        return make(copy.copy(self.__unigrad_plain__), self.__unigrad_run__, self.enabled)


class LayerFacade(Facade):
    """Of a layer or model of Keras."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layer, in the mode that was chosen through its Block."""
        if "training" not in kwargs:
            from unigrad.wrapping import wrap  # the core imports this module by name

            chosen = wrap(self.__unigrad_plain__).memory.training
            if chosen is not None:
                kwargs["training"] = chosen
        return super().__call__(*args, **kwargs)  # type: ignore[misc]  # of the class behind this one

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of the plain layer, and of what runs it."""
        return config_of(self.__unigrad_plain__, self.__unigrad_run__, self.enabled)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Return a new layer of such a configuration."""
        return Restored.from_config(config)

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the plain call through ``run``; a call on symbolic tensors builds a model, and runs nothing."""
        forward = self.__unigrad_plain__.call
        if not self.enabled or in_symbolic_call(args, kwargs):
            return forward(*args, **kwargs)
        return self.__unigrad_run__(forward, *args, **kwargs)


class ModuleFacade(Facade):
    """Of a ``tf.Module``."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the plain call through ``run``, in the mode that was chosen through its Block."""
        from unigrad.wrapping import wrap  # the core imports this module by name
        from unigrad_tensorflow.calls import in_mode

        plain = self.__unigrad_plain__
        if not self.enabled:
            return plain(*args, **kwargs)
        return in_mode(
            lambda *inner, **named: self.__unigrad_run__(plain.__call__, *inner, **named),
            args,
            kwargs,
            wrap(plain).memory.training,
        )


_classes: WeakValueDictionary[type, type] = WeakValueDictionary()


def _class(base: type) -> type:
    made = _classes.get(base)
    if made is None:
        kind = LayerFacade if issubclass(base, Layer) else ModuleFacade
        names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
        try:
            made = type(base.__name__, (kind, base), names)
        except TypeError as cause:
            raise UnsupportedError(
                f"no model can stand for a {base.__qualname__} ({cause}); checkpoint a function that calls it instead: "
                "unigrad.checkpoint(function, blocks=[model])"
            ) from cause
        if kind is LayerFacade:
            register(made)
        _classes[base] = made
    return made


def plain_of(model: Any) -> Any:
    """Return the model behind all facades."""
    while isinstance(model, Facade):
        model = model.__unigrad_plain__
    return model


def make(plain: Any, run: Callable[..., Any], enabled: bool) -> Any:
    """Return a facade of ``plain``."""
    made = object.__new__(_class(type(plain_of(plain))))
    object.__setattr__(made, "__dict__", vars(plain))
    for name, value in zip(Facade.__slots__, (plain, run, enabled), strict=True):
        object.__setattr__(made, name, value)
    return made


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a model that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    if isinstance(model, tf.Module) and not callable(model):
        raise UnsupportedError(
            f"a {type(model).__name__} has no __call__; checkpoint a function: unigrad.checkpoint(function, blocks=[module])"
        )
    return make(model, run, True)

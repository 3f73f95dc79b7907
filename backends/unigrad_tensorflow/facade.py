"""A model that is another one in everything but its forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unigrad.errors import UnsupportedError
from unigrad.facade import Facade, plain_of, run_forward
from unigrad.facade import make as make_of
from unigrad_tensorflow.private import Layer, in_symbolic_call
from unigrad_tensorflow.saving import Restored, config_of, register

__all__ = ["facade", "make"]


class _Copied(Facade):
    __slots__ = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        from unigrad_tensorflow.copies import copy_into  # which knows facades

        return copy_into(self, memo)


class LayerFacade(_Copied):
    """Of a layer or model of Keras."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

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
        if in_symbolic_call(args, kwargs):
            return forward(*args, **kwargs)
        return run_forward(self, forward, args, kwargs)


class ModuleFacade(_Copied):
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


def make(plain: Any, run: Callable[..., Any], enabled: bool) -> Any:
    """Return a facade of ``plain``."""
    return make_of(LayerFacade if isinstance(plain_of(plain), Layer) else ModuleFacade, plain, run, enabled)


def facade(model: Any, run: Callable[..., Any]) -> Any:
    """Return a model that is ``model`` in everything but its forward, which is ``run(forward, *args, **kwargs)``."""
    if isinstance(model, tf.Module) and not callable(model):
        raise UnsupportedError(
            f"a {type(model).__name__} has no __call__; checkpoint a function: unigrad.checkpoint(function, blocks=[module])"
        )
    return make(model, run, True)

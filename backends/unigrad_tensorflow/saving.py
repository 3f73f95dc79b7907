"""A checkpointed layer in a model that Keras saves: its configuration is that of the plain layer and of what runs it."""

from __future__ import annotations

from typing import Any

import keras

from unigrad.checkpoint import Rerun
from unigrad.errors import UnsupportedError
from unigrad.microbatch import Parts

__all__ = ["Restored", "config_of", "register"]

_NAME = "Facade"
_KINDS: dict[str, tuple[type[Rerun], tuple[str, ...]]] = {
    "checkpoint": (Rerun, ("verify",)),
    "microbatch": (Parts, ("size", "axis", "whole", "combine", "probe", "allow_coupled")),
}
"""What runs a layer, and its settings in the order in which it takes them."""
_NEEDS = "a layer run by unigrad; call unigrad.get_backend('tensorflow') before loading"
"""Keras loads no class of others by itself, and shows the configuration in its error."""
_PLAIN = (bool, int, float, str, type(None))


class Restored:
    """Stands in Keras' register of classes for all facades, whose classes are made when they are needed."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Return the layer, run as it was when it was saved."""
        from unigrad_tensorflow.facade import make  # which imports this module

        kind, names = _KINDS[config["run"]]
        given = [config["settings"][name] for name in names]
        run = kind(*(tuple(item) if isinstance(item, list) else item for item in given))
        return make(keras.saving.deserialize_keras_object(config["layer"]), run, config["enabled"])


def register(kind: type) -> None:
    """Have Keras save layers of a facade's class under one name, and load them by :class:`Restored`."""
    kind.__module__ = __name__  # Keras would otherwise load one of its own layers with a configuration that is not its
    keras.saving.register_keras_serializable("unigrad", _NAME)(kind)
    keras.saving.get_custom_objects()[f"unigrad>{_NAME}"] = Restored


def config_of(plain: Any, run: Any, enabled: bool) -> dict[str, Any]:
    """Return the configuration of a facade; ``UnsupportedError`` for what no configuration can hold."""
    name, names = next(((name, names) for name, (kind, names) in _KINDS.items() if type(run) is kind), (None, ()))
    values = {key: getattr(run, key) for key in names}
    settings = {key: list(item) if isinstance(item, tuple) else item for key, item in values.items()}
    lost = [
        key
        for key, item in settings.items()
        if not isinstance(item, _PLAIN)
        and not (isinstance(item, list) and all(isinstance(one, _PLAIN) for one in item))
    ]
    if name is None or lost:
        raise UnsupportedError(
            f"the layer {plain.name!r} can't be saved as a whole: what runs it holds what a file can't ({', '.join(lost) or run!r}); "
            "save weights with save_weights() instead"
        )
    return {
        "needs": _NEEDS,
        "layer": keras.saving.serialize_keras_object(plain),
        "run": name,
        "settings": settings,
        "enabled": enabled,
        "name": plain.name,
    }


keras.saving.get_custom_objects()[f"unigrad>{_NAME}"] = Restored

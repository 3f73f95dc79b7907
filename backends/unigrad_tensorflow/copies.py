"""Deep copies of models: Keras saves and loads to copy, which loses what has no configuration."""

from __future__ import annotations

import copy as copying
import types
from typing import Any

import keras
import tensorflow as tf

from unigrad.facade import Facade, again, plain_of
from unigrad_tensorflow.arrays import value
from unigrad_tensorflow.private import Layer
from unigrad_tensorflow.structure import is_module, places

__all__ = ["copy", "copy_into"]

_BOUND = ("build", "quantize")
"""Functions that Keras hangs on each layer as it is made; they know the layer."""
_SHARED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, str, bytes, int, float, complex)


def copy(model: Any) -> Any:
    """Return a deep copy, layers without variables included."""
    return copy_into(model, {})


def copy_into(model: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy that belongs to a copy of more.

    Parameters
    ----------
    model
        The model.
    memo
        As of ``copy.deepcopy``.
    """
    fresh = []
    for _, module in places(model):
        plain = plain_of(module)
        if id(plain) not in memo:
            memo[id(plain)] = _shell(plain)
            fresh.append(plain)
    for plain in fresh:
        _fill(plain, memo)
    return _copy(model, memo)


def _shell(module: Any) -> Any:
    kind = type(module)
    return kind.__new__(kind) if isinstance(module, Layer) else object.__new__(kind)


def _fill(module: Any, memo: dict[int, Any]) -> None:
    made = vars(memo[id(module)])
    for name, item in vars(module).items():
        if not (isinstance(module, Layer) and name in _BOUND):
            made[name] = _copy(item, memo)


def _copy(item: Any, memo: dict[int, Any]) -> Any:
    if (
        item is None
        or isinstance(item, _SHARED)
        or (isinstance(item, tf.Tensor) and not isinstance(item, keras.Variable))
    ):
        return item
    if id(item) in memo:
        return memo[id(item)]
    if isinstance(item, Facade):
        made = again(item, _copy(item.__unigrad_plain__, memo))
        memo[id(item)] = made
        return made
    if isinstance(item, tf.Variable):
        return _variable(item, memo)
    if is_module(item):
        memo[id(item)] = _shell(item)
        _fill(item, memo)
        return memo[id(item)]
    if isinstance(item, types.MethodType):
        return types.MethodType(item.__func__, _copy(item.__self__, memo))
    if type(item) in (list, set):
        made = memo[id(item)] = type(item)()
        (made.extend if type(item) is list else made.update)(_copy(part, memo) for part in list(item))
        return made
    if type(item) is dict:
        made = memo[id(item)] = {}
        made.update({_copy(key, memo): _copy(part, memo) for key, part in item.items()})
        return made
    if isinstance(item, tuple):
        parts = [_copy(part, memo) for part in item]
        return type(item)._make(parts) if hasattr(item, "_make") else type(item)(parts)
    if type(item).__module__.startswith("keras.src."):
        return _of_keras(item, memo)
    return copying.deepcopy(item, memo)


def _variable(item: Any, memo: dict[int, Any]) -> Any:
    made = tf.Variable(value(item), trainable=item.trainable, name=item.name.partition(":")[0], dtype=item.dtype)
    if getattr(item, "_unigrad_parameter", False):
        made._unigrad_parameter = True
    memo[id(item)] = made
    return made


def _of_keras(item: Any, memo: dict[int, Any]) -> Any:
    """Copy an object of Keras: a variable, a container, or the books that a layer keeps."""
    kind = type(item)
    if not hasattr(item, "__dict__"):
        return item
    made = kind.__new__(kind)
    memo[id(item)] = made
    if isinstance(item, list):
        list.extend(made, [_copy(part, memo) for part in item])
    elif isinstance(item, set):
        set.update(made, {_copy(part, memo) for part in item})
    elif isinstance(item, dict):
        for key, part in item.items():
            dict.__setitem__(made, key, _copy(part, memo))
    for name, part in vars(item).items():
        vars(made)[name] = _copy(part, memo)
    if hasattr(item, "stored_ids") and hasattr(item, "config"):  # a tracker knows what it holds by id
        made.stored_ids = {name: {id(part) for part in store} for name, (_, store) in made.config.items()}
    return made

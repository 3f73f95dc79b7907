"""Calls of layers: in a mode, and watched."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from unigrad_tensorflow.private import Layer, call_state
from unigrad_tensorflow.structure import places

__all__ = ["Patched", "ambient", "in_mode", "mode", "on_built", "watch_calls"]


def in_mode(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None) -> Any:
    """Call a model, and every layer of Keras in it, in a mode; None leaves it to the call that is running."""
    if isinstance(model, tf.Module):
        for callback in _calls.listeners:  # of a module this is the only call that can be seen
            callback(model)
    if training is None or "training" in kwargs:
        return model(*args, **kwargs)
    if isinstance(model, Layer):
        return model(*args, training=training, **kwargs)
    with ambient(training):
        return model(*args, **kwargs)


@contextmanager
def ambient(training: bool) -> Iterator[None]:
    """Let layers that are called in no running call and without a mode run in this one."""
    with _calls.telling(_nothing):
        before = _modes.value
        _modes.value = training
        try:
            yield
        finally:
            _modes.value = before


def mode() -> bool | None:
    """Return the mode in which layers are called that are called without one."""
    return _modes.value


class _Modes(threading.local):
    value: bool | None = None


_modes = _Modes()


def _nothing(layer: Any) -> None:
    """Listen to calls for the sake of their mode."""


class Patched:
    """A method of ``keras.layers.Layer`` that is exchanged while somebody needs it."""

    def __init__(self, name: str, wrapper: Callable[..., Any]) -> None:
        self.name = name
        self.wrapper = wrapper
        self.plain = getattr(Layer, name)
        self.users = 0
        self.lock = threading.Lock()
        self.local = threading.local()

    @contextmanager
    def telling(self, callback: Callable[..., Any]) -> Iterator[None]:
        """Tell ``callback`` of calls in this thread."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                setattr(Layer, self.name, self.wrapper)
        listeners: list[Callable[..., Any]] = self.local.__dict__.setdefault("listeners", [])
        listeners.append(callback)
        try:
            yield
        finally:
            listeners.remove(callback)
            with self.lock:
                self.users -= 1
                if not self.users:
                    setattr(Layer, self.name, self.plain)

    @property
    def listeners(self) -> list[Callable[..., Any]]:
        """The callbacks of this thread."""
        return list(self.local.__dict__.get("listeners", ()))


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    for callback in _calls.listeners:
        callback(self)
    if _modes.value is not None and "training" not in kwargs and call_state()["current_call_ctx"] is None:
        kwargs["training"] = _modes.value
    return _calls.plain(self, *args, **kwargs)


_calls = Patched("__call__", _call)


def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> Any:
    """Call ``callback(layer)`` before each layer of Keras that this thread calls; Keras has no hooks of its own."""
    return _calls.telling(callback)


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` each time a layer that waits has just created its variables; returns the undo."""
    waiting = [module for _, module in places(model) if isinstance(module, Layer) and not module.built]
    undo = []
    for layer in waiting:
        build = layer.build

        @functools.wraps(build)
        def built(*args: Any, layer: Any = layer, build: Any = build, **kwargs: Any) -> Any:
            result = build(*args, **kwargs)
            callback()
            return result

        object.__setattr__(layer, "build", built)
        undo.append((layer, build))

    def undo_all() -> None:
        for layer, build in undo:
            object.__setattr__(layer, "build", build)

    return undo_all

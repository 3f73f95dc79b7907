"""A ``torch.nn.Module`` as named tensors."""

from __future__ import annotations

import copy as _copy
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import UninitializedBuffer, is_lazy

from unigrad.protocols import Entry, Structure
from unigrad_torch.facade import facade as facade
from unigrad_torch.modules import describe, inner, is_compiled, unchanged
from unigrad_torch.modules import layers as named_layers


def is_model(obj: object) -> bool:
    """Whether ``obj`` is an ``nn.Module``."""
    return isinstance(obj, nn.Module)


def unwrap(model: Any) -> Any:
    """Return the module inside DDP, FSDP, DataParallel and torch.compile, else the module itself."""
    found, _ = inner(model)
    return found


def structure(model: Any, known: Structure | None = None) -> Structure:
    """Describe the module; return ``known`` itself if nothing was added, removed, replaced or built since."""
    if known is not None and unchanged(model, known):
        return known
    return describe(model)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    """Call the module; modes are afterwards as they were."""
    switch = training is not None and model.training != training
    if not switch and not frozen:
        return model(*args, **kwargs)
    before = modes(model)
    try:
        if switch:
            set_training(model, bool(training))
        for layer in frozen:
            layer.training = False
        return model(*args, **kwargs)
    finally:
        set_modes(model, before)


def training(model: Any) -> bool:
    """Return the mode of the module."""
    return bool(model.training)


def set_training(model: Any, training: bool) -> None:
    """Set the mode of the module and all its layers."""
    model.train(training)


def modes(model: Any) -> list[tuple[Any, bool]]:
    """Return the modes of all layers."""
    return [(module, module.training) for module in model.modules()]


def set_modes(model: Any, modes: list[tuple[Any, bool]]) -> None:
    """Set the modes of all layers as ``modes`` returned them."""
    for module, mode in modes:
        if module.training != mode:  # a module looks through all its parts at each setting
            module.training = mode


def couples_samples(model: Any) -> str | None:
    """Path of the first batch normalization that would use the statistics of the batch, else None."""
    for path, _, module in named_layers(model):
        if isinstance(module, _BatchNorm) and (module.training or not module.track_running_stats):
            return path
    return None


def copy(model: Any) -> Any:
    """Deep copy of the module, lazy layers included."""
    # torch copies a parameter without a shape since https://github.com/pytorch/pytorch/pull/83809, a buffer not yet
    lazy = [tensor for module in model.modules() for tensor in module._buffers.values() if is_lazy(tensor)]
    return _copy.deepcopy(model, {id(tensor): _lazy_buffer(tensor) for tensor in lazy})


def _lazy_buffer(tensor: Any) -> UninitializedBuffer:
    made = UninitializedBuffer(tensor.requires_grad, tensor.device, tensor.dtype)
    vars(made).update(vars(tensor))
    return made


class _Built:
    """Hook of one lazy layer that reports that the layer has its parameters; a copy of the layer does not report."""

    def __init__(self, module: Any, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.handle = module.register_forward_pre_hook(self)

    def __call__(self, module: Any, args: Any) -> None:
        if not any(is_lazy(tensor) for tensor in module._parameters.values()):
            self.handle.remove()
            self.callback()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _silent

    def __reduce__(self) -> str:
        return "_silent"


def _silent(module: Any, args: Any) -> None:
    """Stand in a copied or saved layer for a hook that belongs to the original."""


def layers(model: Any) -> list[Any]:
    """Return the module and all modules inside it."""
    return list(model.modules())


@contextmanager
def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> Iterator[None]:
    """Call ``callback(module)`` before each module that this thread calls, unless compiled ones are known to be called.

    torch warns of a hook on all modules when a compiled one is called, and compiles it once more.
    """
    if any(map(is_compiled, known)):
        yield
        return
    thread = threading.get_ident()

    def before(module: Any, args: Any) -> None:
        # the compiler traces this hook into a compiled module, and could not trace more of it
        if not torch.compiler.is_compiling() and threading.get_ident() == thread:
            callback(module)

    handle = register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` each time a lazy layer has just created its parameters; return the undo."""
    hooks = [
        # after the layer's own hook, which creates the parameters: hooks run in the order of registration
        _Built(module, callback)
        for module in model.modules()
        if any(is_lazy(tensor) for tensor in module._parameters.values())
    ]

    def undo() -> None:
        for hook in hooks:
            hook.handle.remove()

    return undo


def trainable(parameter: Any) -> bool:
    """Whether the parameter is a leaf that requires a gradient."""
    return bool(parameter.requires_grad and parameter.is_leaf)


def set_trainable(parameter: Any, trainable: bool) -> None:
    """Make the parameter require a gradient or not."""
    parameter.requires_grad_(trainable)


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    """Put ``tensors`` in the places of the buffers; return what stood there.

    The objects are exchanged, not their values: a user may have replaced a buffer since.
    """
    before = [entry.owner._buffers[entry.key] for entry in entries]
    for entry, tensor in zip(entries, tensors, strict=True):
        entry.owner._buffers[entry.key] = tensor
    return before

"""A toygrad module as named tensors; tensors to and from NumPy. See ``unigrad.protocols.BlockModule``."""

from __future__ import annotations

import copy as copies
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import toygrad
from toygrad import Buffer, Dense, Module, Parameter, Tensor

from unigrad.protocols import Entry, Structure


def is_model(obj: object) -> bool:
    return isinstance(obj, Module)


def is_tensor(obj: object) -> bool:
    return isinstance(obj, Tensor)


def unwrap(model: Any) -> Any:
    return model


def structure(model: Any, known: Structure | None = None) -> Structure:
    parameters, buffers = [], []
    for path, module in model.modules():
        role = "dense" if isinstance(module, Dense) else "other"
        for key, value in vars(module).items():
            name = f"{path}.{key}" if path else key
            if isinstance(value, Parameter):
                parameters.append(Entry(name, name, value, role, path, module, key))
            elif isinstance(value, Buffer):
                buffers.append(Entry(name, name, value, role, path, module, key))
    token = [(entry.name, id(entry.tensor)) for entry in parameters + buffers]
    if known is not None and known.token == token:
        return known
    return Structure(tuple(parameters), tuple(buffers), token=token)


def call(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: bool | None, frozen: Sequence[Any]
) -> Any:
    # toygrad has no normalization layers, so that nothing can be in ``frozen``.
    if training is None:
        return model(*args, **kwargs)
    before = modes(model)
    set_training(model, training)
    try:
        return model(*args, **kwargs)
    finally:
        set_modes(model, before)


def training(model: Any) -> bool:
    return bool(model.training)


def set_training(model: Any, training: bool) -> None:
    for _, module in model.modules():
        module.training = training


def modes(model: Any) -> Any:
    return [(module, module.training) for _, module in model.modules()]


def set_modes(model: Any, modes: Any) -> None:
    for module, mode in modes:
        module.training = mode


def couples_samples(model: Any) -> str | None:
    return None


def copy(model: Any) -> Any:
    return copies.deepcopy(model)


def facade(model: Any, run: Callable[..., Any]) -> Any:
    class Twin(type(model)):  # type: ignore[misc]  # its base is known at run time only
        __slots__ = ("enabled",)  # not in the dictionary, which is the model's

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return run(model.forward, *args, **kwargs) if self.enabled else model.forward(*args, **kwargs)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            twin = facade(copies.deepcopy(model, memo), run)
            twin.enabled = self.enabled
            return twin

    twin = object.__new__(Twin)
    twin.__dict__ = vars(model)
    twin.enabled = True
    return twin


def layers(model: Any) -> list[Any]:
    return [module for _, module in model.modules()]


@contextmanager
def watch_calls(callback: Callable[[Any], None], known: Collection[Any]) -> Iterator[None]:
    toygrad.call_hooks.append(callback)
    try:
        yield
    finally:
        toygrad.call_hooks.remove(callback)


def on_built(model: Any, callback: Callable[[], None]) -> Callable[[], None]:
    return lambda: None  # toygrad creates every parameter at once


def trainable(parameter: Any) -> bool:
    return bool(parameter.requires_grad and parameter.is_leaf)


def set_trainable(parameter: Any, trainable: bool) -> None:
    parameter.requires_grad = trainable


def swap(entries: Sequence[Entry], tensors: Sequence[Any]) -> list[Any]:
    before = [getattr(entry.owner, entry.key) for entry in entries]
    for entry, tensor in zip(entries, tensors, strict=True):
        setattr(entry.owner, entry.key, tensor)
    return before


def assign(tensor: Any, array: Any) -> None:
    tensor.write(array)


def version(tensor: Any) -> Hashable:
    return int(tensor.version)


def to_numpy(tensor: Any) -> Any:
    return np.array(tensor.data, order="C")


def from_numpy(array: Any) -> Any:
    return Tensor(array)


def shape(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.data.shape)


def dtype(tensor: Any) -> str:
    return str(tensor.data.dtype)


def is_floating(tensor: Any) -> bool:
    return True


def requires_gradient(tensor: Any) -> bool:
    return bool(tensor.requires_grad)


def clone(tensor: Any) -> Any:
    twin = type(tensor)(tensor.data)
    twin.requires_grad = False
    return twin


def snapshot(tensor: Any) -> Any:
    return clone(tensor)


def zeros(tensor: Any) -> Any:
    return Tensor(np.zeros_like(tensor.data))


def add(left: Any, right: Any) -> Any:
    return left + right


def scale(tensor: Any, factor: Any) -> Any:
    return tensor * factor


def cast(tensor: Any, dtype: str) -> Any:
    target = np.dtype(dtype)
    if tensor.data.dtype == target:
        return tensor
    source = tensor.data.dtype
    return toygrad.record(tensor.data.astype(target), (tensor,), lambda c: (c.astype(source),))


def clip_factor(tensors: Sequence[Any], maximum: float) -> Any:
    norm = float(np.sqrt(sum(float((t.data * t.data).sum()) for t in tensors)))
    return float(np.minimum(1.0, maximum / norm)) if norm else 1.0  # min() of Python would turn NaN into 1


def narrow(tensor: Any, axis: int, start: int, stop: int) -> Any:
    return tensor[(slice(None),) * axis + (slice(start, stop),)]


def concat(tensors: Sequence[Any], axis: int) -> Any:
    return toygrad.join(tensors, axis)


def equal(left: Any, right: Any) -> bool:
    same = left.data.shape == right.data.shape and left.data.dtype == right.data.dtype
    return bool(same and left.data.tobytes() == right.data.tobytes())

"""The base of all layers: named parameters, buffers and sub-layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from unigrad_numpy.graph import state
from unigrad_numpy.tensor import Parameter, Tensor

__all__ = ["Module"]


class Module:
    """A layer or model; subclasses define ``forward``.

    Assigning a :class:`Parameter` or a module to an attribute registers it under that name; :meth:`register_buffer`
    does so for a tensor that is saved with the layer but not trained.

    Examples
    --------
    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> Scale()(Tensor([1.0, 3.0])).numpy().tolist()
    [2.0, 6.0]
    """

    training: bool

    def __init__(self) -> None:
        vars(self).update(_parameters={}, _buffers={}, _modules={}, _on_built=[], training=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; to be defined by the subclass."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Compute the output."""
        for watcher in state.calls:
            watcher(self)
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are no plain attributes.
        own = vars(self)
        if "_parameters" not in own:
            raise AttributeError(f"call super().__init__() before using attribute {name!r} of {type(self).__name__}")
        if name in own["_parameters"]:
            return own["_parameters"][name]
        for kind in ("_buffers", "_modules"):
            if name in own[kind]:
                return own[kind][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self)
        if "_parameters" not in own:
            raise AttributeError(f"call super().__init__() before setting attribute {name!r} of {type(self).__name__}")
        if isinstance(value, Parameter):
            self._register("_parameters", name, value)
        elif isinstance(value, Module):
            self._register("_modules", name, value)
        elif name in own["_buffers"] and (value is None or isinstance(value, Tensor)):
            own["_buffers"][name] = value
        elif value is None and name in own["_parameters"]:
            own["_parameters"][name] = None
        else:
            for kind in ("_parameters", "_buffers", "_modules"):
                own[kind].pop(name, None)
            object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        for kind in ("_parameters", "_buffers", "_modules"):
            if name in vars(self)[kind]:
                del vars(self)[kind][name]
                return
        object.__delattr__(self, name)

    def _register(self, kind: str, name: str, value: Any) -> None:
        own = vars(self)
        if "." in name or not name:
            raise KeyError(f"{name!r} cannot be the name of a member: it must not be empty or contain a dot")
        for other in ("_parameters", "_buffers", "_modules"):
            if other != kind:
                own[other].pop(name, None)
        own.pop(name, None)
        own[kind][name] = value

    def register_parameter(self, name: str, value: Parameter | None) -> None:
        """Register a parameter; None reserves the name."""
        self._register("_parameters", name, value)

    def register_buffer(self, name: str, value: Tensor | None) -> None:
        """Register a tensor that is saved with the layer but not trained."""
        self._register("_buffers", name, value)

    def add_module(self, name: str, value: Module) -> None:
        """Register a sub-layer."""
        self._register("_modules", name, value)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield ``(path, module)`` for this module and all below it, each module once."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            path, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield path, module
            stack.extend((join(path, name), child) for name, child in reversed(vars(module)["_modules"].items()))

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it."""
        return (module for _, module in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield ``(path, parameter)``, a tied parameter once, under its first path."""
        return self._named("_parameters")

    def parameters(self) -> list[Parameter]:
        """Return all parameters, each once."""
        return [parameter for _, parameter in self.named_parameters()]

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield ``(path, buffer)``, each buffer once."""
        return self._named("_buffers")

    def _named(self, kind: str) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, tensor in vars(module)[kind].items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield join(path, name), tensor

    @property
    def pending(self) -> bool:
        """Whether this layer itself still has parameters to create at its first call."""
        return False

    def on_built(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when this layer has created its pending parameters; returns the undo."""
        callbacks = vars(self)["_on_built"]
        callbacks.append(callback)
        return lambda: callbacks.remove(callback) if callback in callbacks else None

    def built(self) -> None:
        """Tell the callbacks that the parameters exist now; for lazy layers."""
        for callback in list(vars(self)["_on_built"]):
            callback()

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and in all layers below."""
        for module in self.modules():
            vars(module)["training"] = mode
        return self

    def eval(self) -> Self:
        """Set inference mode here and in all layers below."""
        return self.train(False)

    def to(self, dtype: Any) -> Self:
        """Convert float parameters and buffers in place; the tensors stay the same objects."""
        for _, tensor in [*self.named_parameters(), *self.named_buffers()]:
            if tensor.dtype.kind == "f":
                tensor._array = tensor._array.astype(np.dtype(dtype))
                tensor._counter.value += 1
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        # Whoever waits for this layer does not wait for its copy.
        values = {name: value for name, value in vars(self).items() if name != "_on_built"}
        vars(twin).update({name: copy.deepcopy(value, memo) for name, value in values.items()}, _on_built=[])
        return twin

    def extra_repr(self) -> str:
        """Return what stands between the brackets of ``repr``."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in vars(self)["_modules"].items()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return "\n  ".join([f"{type(self).__name__}({self.extra_repr()}", *lines]) + "\n)"


def join(path: str, name: str) -> str:
    """Return the path of a member."""
    return f"{path}.{name}" if path else name

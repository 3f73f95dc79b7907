"""Layers that hold layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from unigrad_numpy.nn.module import Module

__all__ = ["ModuleList", "Sequential"]


class ModuleList(Module):
    """Layers by number, for a model that calls them itself."""

    def __init__(self, layers: Iterable[Module] = ()) -> None:
        super().__init__()
        for layer in layers:
            self.append(layer)

    def append(self, layer: Module) -> None:
        """Add a layer at the end."""
        if not isinstance(layer, Module):
            raise TypeError(f"{type(self).__name__} holds modules, not {type(layer).__name__}")
        self.add_module(str(len(self)), layer)

    def __len__(self) -> int:
        return len(vars(self)["_modules"])

    def __iter__(self) -> Iterator[Module]:
        return iter(list(vars(self)["_modules"].values()))

    def __getitem__(self, index: int) -> Module:
        return list(vars(self)["_modules"].values())[index]


class Sequential(ModuleList):
    """Layers called one after the other."""

    def __init__(self, *layers: Module) -> None:
        super().__init__(layers)

    def forward(self, x: Any) -> Any:
        """Return the output of the last layer."""
        for layer in self:
            x = layer(x)
        return x

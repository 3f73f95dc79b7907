"""A module that differs from another in its forward alone. See ``unigrad.protocols.BlockModule.facade``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def facade(model: Any, run: Callable[..., Any]) -> Any:
    plain = vars(type(model)).get("_facade_of", model)
    kind = type(plain)

    class Twin(kind):  # type: ignore[misc,valid-type]  # its base is known at run time only
        __slots__ = ("enabled",)  # beside the dictionary, which is the model's
        _facade_of = plain

        @property
        def forward(self) -> Callable[..., Any]:
            # A property is found before the dictionary, where somebody may have put another forward of the plain module.
            if not self.enabled:
                return model.forward
            return lambda *args, **kwargs: run(model.forward, *args, **kwargs)

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            twin = facade(copy.deepcopy(model, memo), run)
            twin.enabled = self.enabled
            memo[id(self)] = twin
            return twin

    Twin.__name__, Twin.__qualname__, Twin.__module__ = kind.__name__, kind.__qualname__, kind.__module__
    twin = object.__new__(Twin)
    twin.__dict__ = vars(model)
    twin.enabled = True
    return twin

"""Calls that look at a tensor without computing with it."""

from __future__ import annotations

from types import MethodWrapperType
from typing import Any

__all__ = ["is_look"]

# reading these attributes is an operation; reading any other is not
_VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag"})

# methods that compute nothing, or that differentiate
_LOOKS = frozenset(
    {
        "__deepcopy__",
        "__format__",
        "__hash__",
        "__len__",
        "__reduce_ex__",
        "__repr__",
        "_is_view",
        "backward",
        "data_ptr",
        "dim",
        "element_size",
        "get_device",
        "grad",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_floating_point",
        "is_inference",
        "is_neg",
        "is_same_size",
        "is_set_to",
        "ndimension",
        "nelement",
        "numel",
        "register_hook",
        "requires_grad_",
        "size",
        "storage_offset",
        "stride",
        "untyped_storage",
    }
)


def is_look(func: Any) -> bool:
    """Whether a function, as ``__torch_function__`` receives it, only looks at its arguments or differentiates."""
    if type(func) is MethodWrapperType:
        return func.__self__.__name__ not in _VIEWS
    return getattr(func, "__name__", "") in _LOOKS

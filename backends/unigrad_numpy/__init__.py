"""Declaration of the NumPy backend, and its tensors, layers and operations by name.

The rest of the package is loaded at the first use of one of these names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unigrad.protocols import BackendSpec, Capability, Guarantee, hookimpl

if TYPE_CHECKING:
    from unigrad_numpy import nn, ops, optim
    from unigrad_numpy.graph import no_grad
    from unigrad_numpy.tensor import Parameter, Tensor

__all__ = ["Parameter", "Tensor", "nn", "no_grad", "ops", "optim", "unigrad_backend"]

_HOMES = {
    "Parameter": "unigrad_numpy.tensor",
    "Tensor": "unigrad_numpy.tensor",
    "nn": "",
    "no_grad": "unigrad_numpy.graph",
    "ops": "",
    "optim": "",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(importlib.import_module(home), name) if home else importlib.import_module(f"{__name__}.{name}")


@hookimpl
def unigrad_backend() -> BackendSpec:
    """Return the declaration of the backend."""
    return BackendSpec(
        name="numpy",
        framework="numpy",
        install="pip install numpy",
        package="unigrad_numpy",
        minimum="1.26",
        capabilities=frozenset(
            {
                Capability.NESTED_CHECKPOINT,
                Capability.CAPTURES,
                Capability.KEPT_BYTES,
                Capability.LAZY_LAYERS,
                Capability.OWN_GENERATORS,
            }
        ),
        guarantees={
            Guarantee.STALE_NATIVE: "StaleGraphError",
            Guarantee.STALE_HIDDEN: "undetected",
            Guarantee.SHARED_TRUNK: "GraphReleasedError",
            Guarantee.INDEPENDENT_RELEASE: "kept",
            Guarantee.AMBIENT_GRAPH: "kept",
            Guarantee.BITEXACT_SHARING: "kept",
            Guarantee.THREADS: "kept",
        },
        dtypes=("float32", "float64"),
        random_sources=("dropout", "normal", "uniform", "own_normal"),
    )

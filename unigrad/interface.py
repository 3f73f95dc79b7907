"""Whether a backend's modules have the functions of their protocols, with the same parameters.

A module cannot inherit from its protocol, so nothing but this comparison holds the two together at run time.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from unigrad.protocols import (
    ArraysModule,
    Backend,
    BlockModule,
    CheckpointModule,
    MemoryModule,
    OptimizerModule,
    RngModule,
    TapeModule,
)

__all__ = ["MODULES", "check_interface"]

MODULES: Mapping[str, type] = {
    "block": BlockModule,
    "arrays": ArraysModule,
    "tape": TapeModule,
    "checkpoint": CheckpointModule,
    "rng": RngModule,
    "optimizer": OptimizerModule,
    "memory": MemoryModule,
}
"""Modules that a backend's package must have, and their protocols."""

_PREFIXES: Mapping[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
    inspect.Parameter.KEYWORD_ONLY: "*, ",
}


def check_interface(backend: Backend) -> list[str]:
    """Compare every function of a backend with its protocol.

    Parameters
    ----------
    backend
        A loaded backend.

    Returns
    -------
    list of str
        One sentence for each function that is missing or has other parameters; empty if all fit.
    """
    faults = []
    for part, protocol in MODULES.items():
        module = getattr(backend, part)
        for name, wanted in vars(protocol).items():
            if name.startswith("_") or not inspect.isfunction(wanted):
                continue
            where = f"{backend.spec.package}.{part}.{name}"
            function = getattr(module, name, None)
            if not callable(function):
                faults.append(f"{where} is missing")
                continue
            try:
                found = [_shape(p) for p in inspect.signature(function).parameters.values()]
            except ValueError:
                faults.append(f"{where} has no signature")
                continue
            expected = [_shape(p) for p in inspect.signature(wanted).parameters.values()][1:]
            if found != expected:
                faults.append(f"{where} takes ({', '.join(found)}); the protocol says ({', '.join(expected)})")
    return faults


def _shape(parameter: inspect.Parameter) -> str:
    prefix = _PREFIXES.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else "=..."
    return f"{prefix}{parameter.name}{default}"

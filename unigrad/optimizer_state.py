"""State of an optimizer as NumPy arrays by name: collected, checked against a block, and put into a new optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unigrad.errors import ArgumentTypeError, StateMismatchError, UnsupportedError
from unigrad.protocols import Backend
from unigrad.state import misfit
from unigrad.table import Table

__all__ = ["Saved", "collect", "parse"]

SERVED = "served"
"""Name of the array, bytes of a JSON text, that says which optimizer serves what, and which arrays belong to it."""


def collect(
    backend: Backend, native: Any, batches: Sequence[Sequence[tuple[str, Any]]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the state of a native optimizer and of the parameters that it serves, in the order in which it got them."""
    shape, state_of = backend.arrays.shape, backend.optimizer.state_of
    described: dict[str, Any] = {
        "optimizer": type(native).__qualname__ if native is not None else None,
        # Each time that parameters were added may have made a group of settings, so loading repeats it.
        "served": [[[name, list(shape(tensor))] for name, tensor in batch] for batch in batches],
        "dtypes": {name: backend.arrays.dtype(tensor) for batch in batches for name, tensor in batch},
    }
    found: dict[str, np.ndarray[Any, Any]] = {}
    owners = [*(item for batch in batches for item in batch), ("", None)] if native is not None else []
    for name, tensor in owners:
        for key, value in state_of(native, tensor).items():
            if value is None:
                continue
            if backend.arrays.is_tensor(value):
                value = backend.arrays.to_numpy(value)
            if "/" in key or not isinstance(value, bool | int | float | np.ndarray | np.generic):
                whose = f"of {name!r}" if name else "of the whole"
                raise UnsupportedError(
                    f"the state {key!r} {whose} of {type(native).__name__} is a {type(value).__name__}; only tensors and "
                    "numbers can be saved"
                )
            found[f"{name}/{key}"] = np.asarray(value)
    # Without an entry many an optimizer would begin anew in silence, or take one of another shape by broadcasting.
    described["entries"] = {entry: [value.dtype.name, list(value.shape)] for entry, value in sorted(found.items())}
    return {SERVED: np.frombuffer(json.dumps(described).encode(), np.uint8).copy(), **found}


@dataclass(frozen=True)
class Saved:
    """A state that fits a block.

    Parameters
    ----------
    backend
        Of the block.
    kind
        Type of the optimizer that was saved; None if there was none yet.
    batches
        Name -> native parameter, for each time that parameters were added.
    states
        Name of a parameter, empty for what belongs to none, -> its state.
    """

    backend: Backend
    kind: str | None
    batches: tuple[Mapping[str, Any], ...]
    states: Mapping[str, Mapping[str, np.ndarray[Any, Any]]]

    def check_kind(self, native: Any) -> None:
        """Raise ``StateMismatchError`` if the factory made an optimizer of another type than the saved one."""
        if type(native).__qualname__ != self.kind:
            raise StateMismatchError(
                f"the state is that of {self.kind}, and the factory makes {type(native).__qualname__}; nothing was changed"
            )

    def fill(self, native: Any) -> None:
        """Put the state into a native optimizer that serves the same parameters."""
        tensors = {name: tensor for batch in self.batches for name, tensor in batch.items()}
        for name, state in self.states.items():
            self.backend.optimizer.set_state_of(native, tensors[name] if name else None, state)


def parse(arrays: Mapping[str, Any], table: Table, backend: Backend) -> Saved:
    """Check that a state has the form that :func:`collect` gives it and fits a block's parameters."""
    if not isinstance(arrays, Mapping):
        raise ArgumentTypeError(f"load_state takes a mapping of names to arrays, not a {type(arrays).__name__}")
    kind, served, entries, dtypes = _described(arrays)
    faults = [f"{entry}: missing" for entry in entries if entry not in arrays]
    batches: list[dict[str, Any]] = []
    names: set[str] = {""}
    for batch in served:
        found: dict[str, Any] = {}
        for saved_name, wanted in batch:
            name = table.aliases.get(saved_name, saved_name)
            tensor = table.parameters.get(name)
            if tensor is None:
                faults.append(f"{name}: the block has no such parameter")
            elif backend.arrays.shape(tensor) != wanted:
                faults.append(f"{name}: shape {wanted}, the block has {backend.arrays.shape(tensor)}")
            elif dtypes.get(saved_name) not in (None, backend.arrays.dtype(tensor)):
                faults.append(f"{name}: of {dtypes[saved_name]}, the block has {backend.arrays.dtype(tensor)}")
            elif name in names:
                faults.append(f"{name}: served twice")
            else:
                found[name] = tensor
            names.add(name)
        batches.append(found)
    states: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    for entry, value in arrays.items():
        if entry == SERVED:
            continue
        name, slash, key = str(entry).rpartition("/")
        name = table.aliases.get(name, name)
        if not slash or name not in names or kind is None or entry not in entries:
            faults.append(f"{entry}: belongs to nothing that the optimizer served")
        elif fault := misfit(value):
            faults.append(f"{entry}: {fault}")
        elif (value.dtype.name, value.shape) != entries[entry]:
            dtype, shape = entries[entry]
            faults.append(f"{entry}: {value.dtype.name} of shape {value.shape}, saved was {dtype} of shape {shape}")
        else:
            states.setdefault(name, {})[key] = np.asarray(value)
    if faults:
        raise StateMismatchError(
            f"the optimizer's state does not fit the block, nothing was changed ({len(faults)} mismatches):\n  "
            + "\n  ".join(faults)
        )
    return Saved(backend, kind, tuple(batches), states)


_Shape = tuple[int, ...]


def _described(
    arrays: Mapping[str, Any],
) -> tuple[str | None, list[list[tuple[str, _Shape]]], dict[str, tuple[str, _Shape]], dict[str, str]]:
    try:
        described = json.loads(np.asarray(arrays[SERVED], np.uint8).tobytes())
        kind = described["optimizer"]
        served = [
            [(str(name), tuple(int(size) for size in shape)) for name, shape in batch] for batch in described["served"]
        ]
        entries = {
            str(entry): (str(dtype), tuple(int(size) for size in shape))
            for entry, (dtype, shape) in described["entries"].items()
        }
        dtypes = {str(name): str(dtype) for name, dtype in described.get("dtypes", {}).items()}
        if not (isinstance(kind, str) if served else kind is None) or not all(served):
            raise ValueError(f"it is of {kind!r}")
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as cause:
        raise StateMismatchError(
            f"these arrays are not what Optimizer.state() returned: {SERVED!r} is missing or spoilt; nothing was changed"
        ) from cause
    return kind, served, entries, dtypes

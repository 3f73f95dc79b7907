"""Leaves, collected values and their comparison, shared by the tests of GradientCollector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import unigrad
from unigrad.protocols import Guarantee
from unigrad_conformance.suite.problems import gradients_of, to_numpy

__all__ = ["close", "collects", "f32", "inputs_of", "leaves", "native_gradients", "overwrite", "state_of", "whole_tape"]


def f32(values: Any) -> np.ndarray[Any, Any]:
    """Return values as a float32 array."""
    return np.asarray(values, "float32")


def leaves(samples: Any, dtype: str = "float32", /, **values: Any) -> dict[str, Any]:
    """Return trainable leaves by name, fit to be given to a collector as a block."""
    return {name: samples.leaf(np.asarray(value, "float64"), dtype) for name, value in values.items()}


def inputs_of(collector: unigrad.GradientCollector) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradients of all watched tensors as arrays."""
    return {name: to_numpy(value) for name, value in collector.input_gradients.items()}


def collects(found: Mapping[str, Any], **wanted: Any) -> None:
    """Assert that exactly these names hold exactly these values (small integers, which every dtype holds)."""
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        array = to_numpy(found[name])
        np.testing.assert_array_equal(array.astype("float64"), np.asarray(value, "float64"), err_msg=name)
        assert array.shape == np.shape(value), name


def close(found: Mapping[str, Any], relative: float, absolute: float = 0.0, **wanted: Any) -> None:
    """Assert that exactly these names hold these values up to a tolerance, whose reason stands at the call."""
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        array = to_numpy(found[name])
        assert array.shape == np.shape(value), name
        np.testing.assert_allclose(array.astype("float64"), value, rtol=relative, atol=absolute, err_msg=name)


def overwrite(backend: Any, tensor: Any, values: Any = -99.0) -> bool:
    """Write into a tensor; return False where the framework lets nobody do so, and a shared memory can't be noticed."""
    array = np.full(backend.arrays.shape(tensor), values, backend.arrays.dtype(tensor))
    try:
        backend.arrays.assign(tensor, array)
    except unigrad.UnsupportedError:
        return False
    return True


def whole_tape(backend: Any) -> bool:
    """Whether what was recorded is released, and so kept, as a whole: an independent graph does not outlive another's release."""
    return bool(backend.spec.guarantees.get(Guarantee.INDEPENDENT_RELEASE, "kept") != "kept")


def native_gradients(backend: Any, tensors: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any] | None]:
    """Return what stands where the framework's own tools look for gradients."""
    found = {name: backend.tape.native_gradient(tensor) for name, tensor in tensors.items()}
    return {name: None if value is None else to_numpy(value) for name, value in found.items()}


def state_of(collector: unigrad.GradientCollector) -> dict[str, Any]:
    """Return everything that a failing call must leave as it was, as plain data to compare with ``==``."""
    backend = collector.backend
    tensors = collector.block.parameters
    return {
        "gradients": {name: value.tobytes() for name, value in gradients_of(collector).items()},
        "inputs": {name: value.tobytes() for name, value in inputs_of(collector).items()},
        "usage": collector.usage,
        "native": {
            name: None if value is None else value.tobytes()
            for name, value in native_gradients(backend, tensors).items()
        },
        "values": {name: to_numpy(tensor).tobytes() for name, tensor in tensors.items()},
        "recording": backend.tape.is_recording(),
    }

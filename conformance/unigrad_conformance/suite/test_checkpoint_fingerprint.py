"""Checkpoint: the fingerprint of a tensor tells any two tensors apart that differ in a bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unigrad_conformance.suite.problems import array

pytestmark = pytest.mark.clause("C8")

DTYPES = ["float32", "float64", "int64", "bool"]


def _values(dtype, size):
    values = array(size + 1, seed=7, dtype="float64")[:size] * 1000
    return values > 0 if dtype == "bool" else values.astype(dtype)


def _flip(values, bit):
    """Return a copy with one bit flipped; of a bool its value."""
    if values.dtype == bool:
        flipped = values.copy()
        flipped[bit // 8] = not flipped[bit // 8]
        return flipped
    raw = np.frombuffer(values.tobytes(), "uint8").copy()
    raw[bit // 8] ^= 1 << (bit % 8)
    return raw.view(values.dtype)


@settings(max_examples=200)
@given(dtype=st.sampled_from(DTYPES), size=st.integers(1, 3000), where=st.floats(0, 1, exclude_max=True))
def test_one_flipped_bit_is_noticed(samples, backend, dtype, size, where):
    values = _values(dtype, size)
    bits = values.nbytes * 8
    mark = backend.checkpoint.fingerprint
    left, right = samples.tensor(values), samples.tensor(_flip(values, int(where * bits)))
    assert mark(left) == mark(samples.tensor(values))
    assert mark(left) != mark(right)


@settings(max_examples=100)
@given(size=st.integers(2, 3000), first=st.integers(0, 2999), second=st.integers(0, 2999))
def test_two_swapped_elements_are_noticed(samples, backend, size, first, second):
    values = _values("float32", size)
    first, second = first % size, second % size
    swapped = values.copy()
    swapped[[first, second]] = values[[second, first]]
    same = values.tobytes() == swapped.tobytes()
    mark = backend.checkpoint.fingerprint
    assert (mark(samples.tensor(values)) == mark(samples.tensor(swapped))) == same


@settings(max_examples=100)
@given(size=st.integers(2, 3000), first=st.integers(0, 2999), second=st.integers(0, 2999), bit=st.integers(0, 31))
def test_the_same_bit_flipped_in_two_places_is_noticed(samples, backend, size, first, second, bit):
    """Two equal changes must not cancel, as they would in a plain sum or exclusive or."""
    first, second = first % size, second % size
    values = _values("float32", size)
    changed = _flip(_flip(values, 32 * first + bit), 32 * second + bit)
    mark = backend.checkpoint.fingerprint
    equal = mark(samples.tensor(values)) == mark(samples.tensor(changed))
    assert equal == (values.tobytes() == changed.tobytes())


@pytest.mark.dtypes("float32", "float64")
def test_two_flipped_signs_are_noticed(samples, backend, dtype):
    """The uppermost bits of two words must not cancel in a sum modulo a power of two."""
    values = array(12, dtype=dtype)
    mark = backend.checkpoint.fingerprint
    plain = mark(samples.tensor(values))
    for first in range(12):
        for second in range(first):
            changed = values.copy()
            changed[[first, second]] *= -1
            assert mark(samples.tensor(changed)) != plain, (first, second)


@pytest.mark.parametrize("size", [2, 100, 5000, 100_000])
def test_other_signs_everywhere_are_noticed(samples, backend, size):
    for dtype in ("float32", "float64"):
        values = array(size, dtype=dtype)
        mark = backend.checkpoint.fingerprint
        assert mark(samples.tensor(values)) != mark(samples.tensor(-values))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (2, 0, 3), (1, 1)])
def test_tensors_of_any_shape_have_one(samples, backend, shape):
    tensor = samples.tensor(np.zeros(shape, "float32"))
    hash(backend.checkpoint.fingerprint(tensor))


def test_view_has_the_fingerprint_of_its_values(samples, backend):
    """A slice and a transpose are marked by their values, not by the memory around them."""
    values = array(6, 8)
    operations, mark = samples.operations, backend.checkpoint.fingerprint
    tensor = samples.tensor(values)
    part = operations.index(tensor, (slice(1, 4), slice(2, 7)))
    assert mark(part) == mark(samples.tensor(values[1:4, 2:7].copy()))
    turned = operations.transpose(tensor, (1, 0))
    assert mark(turned) == mark(samples.tensor(values.T.copy()))


def test_every_declared_dtype_has_one(samples, backend, dtype):
    values = array(300)
    changed = values.copy()
    changed[299] = -changed[299]
    mark = backend.checkpoint.fingerprint
    assert mark(samples.tensor(values, dtype)) == mark(samples.tensor(values, dtype))
    assert mark(samples.tensor(values, dtype)) != mark(samples.tensor(changed, dtype))

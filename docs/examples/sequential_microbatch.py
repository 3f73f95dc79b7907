"""One part in the middle of a sequential model run in parts of 16 samples, inside the framework's own container.

python docs/examples/sequential_microbatch.py --backend torch
"""

from __future__ import annotations

import argparse
import copy
import importlib
from typing import Any

import numpy as np

import unigrad

SAMPLES = 512


def collect(label: str, model: Any, x: Any) -> tuple[dict[str, np.ndarray], int]:
    """Return the gradients of the mean square of the output, and the bytes kept for them."""
    with unigrad.GradientCollector(model) as collector:
        with unigrad.kept_bytes(model) as meter:
            output = model(x)
        collector.backward((output * output).mean())
    to_numpy = collector.backend.arrays.to_numpy
    print(f"  {label}: {meter.bytes:,} bytes kept, gradients of {', '.join(collector.gradients)}")
    return {name: to_numpy(value) for name, value in collector.gradients.items()}, meter.bytes


def compare(nn: Any, neck: Any, x: Any) -> tuple[int, int]:
    """Check the gradients with the neck in parts against those without, and return the bytes kept without and with."""
    backbone, head = nn.Linear(3, 6), nn.Linear(12, 1)
    plain = nn.Sequential(backbone, neck, head)
    parts = nn.Sequential(backbone, unigrad.microbatch(neck, size=16), head)
    copied = copy.deepcopy(parts)
    expected, plain_bytes = collect("plain", plain, x)
    found, parts_bytes = collect("parts", parts, x)
    for gradients in (found, collect("copy", copied, x)[0]):
        assert list(gradients) == list(expected)
        for name, value in expected.items():
            # A sum over the samples in another order: SAMPLES * eps is a generous bound on its relative rounding.
            bound = SAMPLES * np.finfo("float32").eps * np.abs(value).max()
            assert np.abs(gradients[name] - value).max() <= bound, name
    return plain_bytes, parts_bytes


def main() -> None:
    """Compare gradients with and without parts, then the bytes kept where the neck is deep enough to keep some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True, choices=("numpy", "torch"))
    options = parser.parse_args()
    native = importlib.import_module(f"models_{options.backend}")
    nn = native.nn
    unigrad.seed(0)
    x = native.tensor(np.random.default_rng(0).standard_normal((SAMPLES, 3)).astype("float32"))
    print("neck of one layer, which keeps nothing inside:")
    compare(nn, nn.Linear(6, 12), x)
    print("deeper neck, whose inner values are kept for one part at a time:")
    deep = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 12))
    plain_bytes, parts_bytes = compare(nn, deep, x)
    assert parts_bytes < plain_bytes
    print(f"kept for backward: {plain_bytes:,} bytes plain, {parts_bytes:,} bytes in parts")
    print("all gradients agree")


if __name__ == "__main__":
    main()

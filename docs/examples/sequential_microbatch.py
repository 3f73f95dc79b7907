"""One part in the middle of a sequential model run in parts of 16 samples, inside the framework's own container.

python docs/examples/sequential_microbatch.py --backend torch
"""

from __future__ import annotations

import argparse
import copy
import importlib

import numpy as np

import unigrad


def main() -> None:
    """Compare gradients and kept bytes with and without parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    options = parser.parse_args()
    native = importlib.import_module(f"models_{options.backend}")
    nn = native.nn
    unigrad.seed(0)
    backbone, neck, head = nn.Linear(3, 6), nn.Sequential(nn.Linear(6, 12), nn.ReLU()), nn.Linear(12, 1)
    plain = nn.Sequential(backbone, neck, head)
    parts = nn.Sequential(backbone, unigrad.microbatch(neck, size=16), head)
    copied = copy.deepcopy(parts)
    x = native.tensor(np.random.default_rng(0).standard_normal((512, 3)).astype("float32"))
    found = {}
    to_numpy = unigrad.get_backend(options.backend).block.to_numpy
    for label, model in (("plain", plain), ("parts", parts), ("copy", copied)):
        with unigrad.GradientCollector(model) as collector:
            with unigrad.kept_bytes(model) as meter:
                output = model(x)
            collector.backward((output * output).mean())
        found[label] = {name: to_numpy(value) for name, value in collector.gradients.items()}
        print(f"{label}: {meter.bytes:,} bytes kept, gradients of {', '.join(found[label])}")
    for label in ("parts", "copy"):
        assert list(found[label]) == list(found["plain"])
        for name, value in found["plain"].items():
            # A sum over 512 samples in another order: 512 * eps is a generous bound on its relative rounding.
            bound = 512 * np.finfo("float32").eps * np.abs(value).max()
            assert np.abs(found[label][name] - value).max() <= bound, name
    print("all gradients agree")


if __name__ == "__main__":
    main()

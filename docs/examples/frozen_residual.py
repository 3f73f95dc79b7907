"""A residual block with frozen batch normalization over 64 regions of an image, in parts of 16.

python docs/examples/frozen_residual.py --backend numpy
"""

from __future__ import annotations

import argparse
import importlib

import numpy as np

import unigrad


def main() -> None:
    """Show the refusal while the normalization is live, then the parts once it is frozen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True, choices=("numpy", "torch"))
    options = parser.parse_args()
    native = importlib.import_module(f"models_{options.backend}")
    unigrad.seed(0)
    block = unigrad.wrap(native.Residual(8)).train()
    before = block.state()
    regions = native.tensor(np.random.default_rng(0).standard_normal((64, 8, 7, 7)).astype("float32"))
    try:
        unigrad.microbatch(block, size=16)(regions)
    except unigrad.BatchCoupledError as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("live batch normalization must be refused")
    block.freeze("*_norm")
    found = {}
    for label, run in (("whole", block), ("parts", unigrad.microbatch(block, size=16))):
        with unigrad.GradientCollector(block) as collector, unigrad.kept_bytes(block) as meter:
            output = run(regions)
            collector.backward((output * output).mean(), retain_graph=True)
        found[label] = {name: block.backend.arrays.to_numpy(value) for name, value in collector.gradients.items()}
        print(f"{label}: {meter.bytes:,} bytes kept; reached {', '.join(collector.usage.reached)}")
    after = block.state()
    assert all(np.array_equal(before[name], after[name]) for name in before), "frozen statistics must not move"
    for name, value in found["whole"].items():
        # A sum over 64 * 49 positions in another order.
        bound = 64 * 49 * np.finfo("float32").eps * np.abs(value).max()
        assert np.abs(found["parts"][name] - value).max() <= bound, name
    print("all gradients agree, the statistics did not move")


if __name__ == "__main__":
    main()

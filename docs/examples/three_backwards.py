"""Two bare tensors and three backwards: what is added, what is written, and what happens at the fourth.

python docs/examples/three_backwards.py --backend numpy
"""

from __future__ import annotations

import argparse
import importlib

import numpy as np

import unigrad


def main() -> None:
    """Run both modes and print the gradients after each backward."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True, choices=("numpy", "torch"))
    options = parser.parse_args()
    native = importlib.import_module(f"models_{options.backend}")
    x1 = native.parameter(np.array([1, 2, 3, 4], "float32"))
    x2 = native.parameter(np.array([5, 6, 7, 8], "float32"))
    to_numpy = unigrad.get_backend(options.backend).arrays.to_numpy
    for mode in ("add", "write"):
        with unigrad.GradientCollector({"x1": x1, "x2": x2}, accumulate=mode) as collector:
            loss = (x1 * x2 * x1).sum()
            for count, retain in enumerate((True, True, False), start=1):
                collector.backward(loss, retain_graph=retain)
                factor = count if mode == "add" else 1
                found = {name: to_numpy(value) for name, value in collector.gradients.items()}
                print(f"{mode}, backward {count}: " + ", ".join(f"{name} {value}" for name, value in found.items()))
                np.testing.assert_array_equal(found["x1"], np.array([10, 24, 42, 64]) * factor)
                np.testing.assert_array_equal(found["x2"], np.array([1, 4, 9, 16]) * factor)
            try:
                collector.backward(loss)
            except unigrad.GraphReleasedError as error:
                print(f"{mode}, backward 4: {error}")
            else:
                raise AssertionError("the fourth backward must be refused")


if __name__ == "__main__":
    main()

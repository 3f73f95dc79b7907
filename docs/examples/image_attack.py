"""An attack on an image: gradients of the input alone, with no gradient of a parameter computed.

python docs/examples/image_attack.py --backend torch
"""

from __future__ import annotations

import argparse
import importlib
import sys

import numpy as np

import unigrad

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError:
    sys.exit("error: the images come with scikit-learn; in a clone of unigrad: pip install '.[dev]'")


def main() -> None:
    """Push one digit along the sign of its gradient until the network changes its mind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True, choices=("numpy", "torch"))
    options = parser.parse_args()
    native = importlib.import_module(f"models_{options.backend}")
    nn = native.nn
    unigrad.seed(0)
    bunch = load_digits()
    images = (bunch.images.reshape(-1, 64) / 16).astype("float32")
    block = unigrad.wrap(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)))
    to_numpy = block.backend.arrays.to_numpy
    optimizer = unigrad.Optimizer(block, native.sgd(0.2))
    for _ in range(60):
        with unigrad.GradientCollector(block) as collector:
            collector.backward(native.loss(block(native.tensor(images)), native.tensor(bunch.target.astype("int64"))))
            collector.apply(optimizer)
    image, label = images[:1].copy(), bunch.target[:1].astype("int64")
    guess = to_numpy(block(native.tensor(image))).argmax()
    print(f"the network reads {guess}, the label is {label[0]}")
    weights = block.state()
    for step in range(1, 51):
        with unigrad.GradientCollector(block, parameters=False) as collector:
            watched = collector.watch(native.tensor(image), "image")
            collector.backward(native.loss(block(watched), native.tensor(label)))
        assert not collector.gradients, "no parameter gradient was asked for"
        image = np.clip(image + 0.02 * np.sign(to_numpy(collector.input_gradients["image"])), 0, 1)
        now = to_numpy(block(native.tensor(image))).argmax()
        if now != guess:
            print(f"after {step} steps of 0.02 it reads {now}")
            break
    else:
        raise AssertionError("50 steps should have been enough")
    assert all(np.array_equal(value, weights[name]) for name, value in block.state().items())


if __name__ == "__main__":
    main()

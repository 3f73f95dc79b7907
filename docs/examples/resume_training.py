"""Train in two processes what was to be trained in one, and end with the same bits, on any backend.

    python docs/examples/resume_training.py --backend torch
    python docs/examples/resume_training.py --backend numpy --stop-after 9

The program starts itself twice: the first process is stopped after some steps, having saved the run; the second one loads it
and goes on. The network has dropout and batch normalization, the images are shuffled by a generator of the program's own, and the
optimizer has momentum. All of that is in the file; afterwards the program compares with a third process that was never stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import unigrad

try:
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error.name} is missing (scikit-learn has the images); in a clone of unigrad: pip install '.[dev]'"
    )

STEPS, BATCH = 12, 64


def train(backend: str, file: Path | None, stop_after: int | None) -> str:
    """Do the steps that are left, and return a hash of all weights, statistics and the optimizer's state."""
    native = importlib.import_module(f"models_{backend}")
    unigrad.seed(0)
    order = np.random.default_rng(1)
    unigrad.register_generator(order)  # so that it is saved too
    bunch = load_digits()
    images, labels = (bunch.images[:, None] / 16).astype("float32"), bunch.target.astype("int64")

    block = unigrad.wrap(native.build(dropout=0.2, dtype="float32")).train()
    optimizer = unigrad.Optimizer(block, native.sgd(0.05))
    done = unigrad.load_training(file, block, optimizer)["step"] if file is not None and file.exists() else 0
    for step in range(done, STEPS):
        if step == stop_after:
            unigrad.save_training(file, block, optimizer, {"step": step})
            return f"stopped after step {step}"
        chosen = order.choice(len(images), BATCH, replace=False)
        with unigrad.GradientCollector(block, expect_unused="auxiliary") as collector:
            collector.backward(native.loss(block(native.tensor(images[chosen])), native.tensor(labels[chosen])))
            collector.apply(optimizer)
    digest = hashlib.sha256()
    for values in (*block.state().values(), *optimizer.state().values()):
        digest.update(values.tobytes())
    return digest.hexdigest()


def main() -> int:
    """Run the three processes, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True, choices=("numpy", "torch"))
    parser.add_argument("--stop-after", type=int, default=5, metavar="STEPS", help=f"1 to {STEPS - 1}")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=("whole", "first", "second"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.stop_after < STEPS:
        parser.error(f"--stop-after takes 1 to {STEPS - 1}, not {options.stop_after}")
    if options.part:
        print(train(options.backend, options.file, options.stop_after if options.part == "first" else None))
        return 0
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("whole", "first", "second"):
            command = [sys.executable, __file__, "--backend", options.backend, "--part", part]
            command += ["--stop-after", str(options.stop_after)]
            command += ["--file", str(Path(folder) / "run.safetensors")] if part != "whole" else []
            results[part] = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            print(f"{part}: {results[part]}")
    same = results["whole"] == results["second"]
    print("the same bits as without a stop" if same else "other bits than without a stop")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

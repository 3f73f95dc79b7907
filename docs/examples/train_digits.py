"""Train a small convolutional network on scikit-learn's 1,797 real images of digits, on any backend.

    python docs/examples/train_digits.py --backend torch
    python docs/examples/train_digits.py --backend numpy --checkpoint --microbatch 16

The network has dropout, batch normalization and one branch that is never called, which the usage table names. The initial
weights and the order of the images come from NumPy and the seed, so that with ``--dropout 0`` all backends follow one curve.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import unigrad

try:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from sklearn.datasets import load_digits
except ModuleNotFoundError as error:
    sys.exit(
        f"error: {error.name} is missing (scikit-learn has the images); in a clone of unigrad: pip install '.[dev]'"
    )

TRAINING_IMAGES = 1437
BATCH = 64


def positive(text: str) -> int:
    """Return the whole number, which is to be at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number


def between(low: float, high: float, kind: type = float) -> Callable[[str], Any]:
    """Return what reads a number from ``low`` up to, not including, ``high``."""

    def number(text: str) -> Any:
        if not low <= kind(text) < high:
            raise argparse.ArgumentTypeError(f"from {low:g} to below {high:g}, not {text}")
        return kind(text)

    return number


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True, choices=("mindspore", "numpy", "paddle", "tensorflow", "torch"))
    parser.add_argument("--epochs", type=positive, default=12)
    parser.add_argument("--rate", type=between(0, 10), default=0.05, help="learning rate")
    parser.add_argument("--dropout", type=between(0, 1), default=0.2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--seed", type=between(0, 2**32 - 2, int), default=0)
    parser.add_argument("--checkpoint", action="store_true", help="recompute the convolutional part in the backward")
    parser.add_argument(
        "--microbatch", type=positive, metavar="SAMPLES", help="run the part without BatchNorm in parts"
    )
    parser.add_argument(
        "--microbatch-all", type=positive, metavar="SAMPLES", help="try the whole network, which must be refused"
    )
    parser.add_argument("--json", type=Path, help="write losses and accuracies per epoch")
    options = parser.parse_args()
    if options.json:
        there = options.json.exists()
        try:
            options.json.open("a").close()
            if not there:
                options.json.unlink()
        except OSError as error:
            parser.error(f"--json can't be written: {error}")
    return options


def digits(dtype: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images and labels, test images and labels; images are ``(count, 1, 8, 8)`` from 0 to 1."""
    bunch = load_digits()
    order = np.random.default_rng(seed).permutation(len(bunch.images))
    images = (bunch.images[order, None] / 16).astype(dtype)
    labels = bunch.target[order].astype("int64")
    cut = TRAINING_IMAGES
    return images[:cut], labels[:cut], images[cut:], labels[cut:]


def initial_state(block: unigrad.Block, native: Any, seed: int) -> dict[str, np.ndarray]:
    """Return the block's state with weights drawn by NumPy, the same on every backend whatever its layout."""
    generator = np.random.default_rng(seed + 1)
    state = block.state()
    for name in sorted(block.parameters):
        role = block.roles[name]
        if role != "norm":
            value = native.to_reference(role, state[name]) if hasattr(native, "to_reference") else state[name]
            fan_in = value[0].size if value.ndim > 1 else value.size
            drawn = generator.standard_normal(value.shape) * np.sqrt(2 / fan_in) * (value.ndim > 1)
            drawn = drawn.astype(value.dtype)
            state[name] = native.from_reference(role, drawn) if hasattr(native, "from_reference") else drawn
    return state


def accuracy(block: unigrad.Block, native: Any, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images that are classified rightly, in inference mode."""
    block.eval()
    with block.backend.tape.no_record():
        logits = block.backend.arrays.to_numpy(block(native.tensor(images)))
    block.train()
    return float((logits.argmax(1) == labels).mean())


def show_usage(console: Console, usage: unigrad.Usage) -> None:
    """Print which parameters the losses reached, and which not."""
    table = Table("parameters", "names", title="usage of the last epoch")
    for kind in ("reached", "frozen", "disconnected", "unused", "pending"):
        names = getattr(usage, kind)
        table.add_row(kind, ", ".join(names) or "-")
    console.print(table)


def main() -> int:
    """Train and report."""
    options = arguments()
    console = Console()
    try:
        unigrad.get_backend(options.backend)
        native = importlib.import_module(f"models_{options.backend}")
    except unigrad.UnigradError as error:
        console.print(f"error: {error}", markup=False)
        return 2
    unigrad.seed(options.seed)
    train_images, train_labels, test_images, test_labels = digits(options.dtype, options.seed)
    model = native.build(options.dropout, options.dtype)
    block = unigrad.wrap(model).train()
    block.load_state(initial_state(block, native, options.seed))
    try:
        if options.checkpoint:
            model.features = unigrad.checkpoint(model.features)
        if options.microbatch is not None:
            model.head = unigrad.microbatch(model.head, options.microbatch)
        if options.microbatch_all is not None:
            block = unigrad.microbatch(block, options.microbatch_all)
            block(native.tensor(train_images[:BATCH]))
        # Some frameworks record, and so keep, inside of a collector only.
        with unigrad.GradientCollector(block, on_unused="ignore"), unigrad.kept_bytes(block) as meter:
            kept = native.loss(block(native.tensor(train_images[:BATCH])), native.tensor(train_labels[:BATCH]))
        del kept
    except (unigrad.BatchCoupledError, unigrad.ArgumentError) as error:
        console.print(f"error: {error}", markup=False)
        return 1
    block.load_state(initial_state(block, native, options.seed))
    unigrad.seed(options.seed)
    optimizer = unigrad.Optimizer(block, native.sgd(options.rate))
    order = np.random.default_rng(options.seed + 2)
    history: list[dict[str, float]] = []
    steps = -(-len(train_images) // BATCH)
    with Progress(console=console) as progress:
        for epoch in range(options.epochs):
            task = progress.add_task(f"epoch {epoch + 1}", total=steps)
            total = 0.0
            shuffled = order.permutation(len(train_images))
            for start in range(0, len(shuffled), BATCH):
                chosen = shuffled[start : start + BATCH]
                with unigrad.GradientCollector(block) as collector:
                    loss = native.loss(block(native.tensor(train_images[chosen])), native.tensor(train_labels[chosen]))
                    collector.backward(loss)
                    collector.apply(optimizer)
                total += float(block.backend.arrays.to_numpy(loss)) * len(chosen)
                progress.advance(task)
            progress.remove_task(task)
            history.append(
                {"loss": total / len(train_images), "accuracy": accuracy(block, native, test_images, test_labels)}
            )
            progress.console.print(
                f"epoch {epoch + 1:2}: loss {history[-1]['loss']:.6f}, test accuracy {history[-1]['accuracy']:.4f}"
            )
    show_usage(console, collector.usage)
    console.print(f"kept for backward at batch {BATCH}: {meter.bytes:,} bytes")
    if options.json:
        options.json.write_text(
            json.dumps({"backend": options.backend, "epochs": history, "kept_bytes": meter.bytes}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A training run with every kind of state, saved half-way and gone on with, as hashes of what it computes.

``python -m unigrad_conformance.suite.resume_problems BACKEND save|load FOLDER OPTIMIZER...`` prints them: with ``save`` each run
is saved after three of six steps and goes on, with ``load`` a new one goes on from the file.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

import unigrad
from unigrad.protocols import Backend, Capability
from unigrad_conformance.suite.optimizer_problems import OPTIMIZERS
from unigrad_conformance.suite.problems import array, dense, to_numpy

__all__ = ["HALF", "STEPS", "Run"]

STEPS, HALF = 6, 3


class Run:
    """A model with dropout, batch normalization, own noise and branches that come into use at the second and the fifth step.

    Parameters
    ----------
    backend, samples
        Of the framework.
    kind
        Name in ``OPTIMIZERS``.
    data
        Generator of the data, which is registered; registered ones last, so runs in one process share it.
    """

    def __init__(self, backend: Backend, samples: Any, kind: str, data: np.random.Generator) -> None:
        self.backend, self.samples = backend, samples
        unigrad.seed(7)
        noisy = Capability.OWN_GENERATORS in backend.spec.capabilities
        ops = samples.operations

        def forward(self: Any, x: Any, branches: int) -> Any:
            hidden = self.body(x)
            if noisy:
                hidden = hidden + samples.own_normal(self.noise, (6, 8))
            return sum(ops.mean(getattr(self, f"head{index}")(hidden)) for index in range(branches)) * 1.0

        body = [
            dense(samples, 4, 8),
            samples.layer("batch_norm", channels=8, momentum=0.1, epsilon=1e-5, affine=True),
            samples.layer("dropout", rate=0.5),
        ]
        layers = {"body": samples.layer("sequential", layers=body)}
        layers |= {f"head{index}": dense(samples, 8, 2, seed=index + 1) for index in range(3)}
        self.model = samples.model(forward, layers=layers, generators={"noise": 5} if noisy else {})
        self.block = unigrad.wrap(self.model).train()
        self.optimizer = unigrad.Optimizer(self.block, OPTIMIZERS[kind].factory(samples))
        self.data = data
        unigrad.register_generator(data)

    def step(self, number: int) -> bytes:
        """Do one step and return the bits of its loss; every random source takes part."""
        ops = self.samples.operations
        scale = random.random() + np.random.random() + self.data.random()
        x = self.samples.tensor((array(6, 4, seed=number) * scale).astype("float32")) + ops.normal((6, 4))
        branches = 1 + (number >= 1) + (number >= 4)
        with unigrad.GradientCollector(self.block, on_unused="ignore") as collector:
            out = self.block(x, branches)
            loss = out * out
            collector.backward(loss)
            collector.apply(self.optimizer)
        return to_numpy(loss).tobytes()

    def bits(self) -> dict[str, bytes]:
        """Return the bits of the state of block and optimizer."""
        states = {"block": self.block.state(), "optimizer": self.optimizer.state()}
        return {f"{part} {name}": value.tobytes() for part, state in states.items() for name, value in state.items()}

    def draws(self) -> bytes:
        """Return the bits of what each random source draws next."""
        mine = [random.random(), np.random.random(), self.data.random()]
        return np.array(mine).tobytes() + to_numpy(self.samples.operations.normal((8,))).tobytes()


def main(name: str, action: str, folder: str, *kinds: str) -> None:
    """Print one line for each thing that the runs computed after the save."""
    backend = unigrad.get_backend(name)
    samples = importlib.import_module(f"{backend.spec.package}.samples")
    for kind in kinds:
        run = Run(backend, samples, kind, np.random.default_rng(3))
        path = Path(folder) / f"{kind}.safetensors"
        start = HALF
        if action == "save":
            for number in range(HALF):
                run.step(number)
            unigrad.save_training(path, run.block, run.optimizer, {"step": HALF})
        else:
            start = unigrad.load_training(path, run.block, run.optimizer)["step"]
        found = {f"loss {number}": run.step(number) for number in range(start, STEPS)}
        for label, bits in {**found, **run.bits(), "draws": run.draws()}.items():
            print(f"{kind} {label}={hashlib.sha256(bits).hexdigest()}")


if __name__ == "__main__":
    main(*sys.argv[1:])

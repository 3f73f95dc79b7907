"""What a backend declares and the primitives it supplies; the logic of every promise is in the core.

A backend is an importable package whose ``__init__`` holds one :data:`hookimpl` that returns a
:class:`BackendSpec` and imports no framework. The core then imports, from the package that the
specification names, the modules ``block``, ``arrays``, ``tape``, ``checkpoint``, ``rng``, ``optimizer`` and ``memory``;
each must satisfy the protocol of the same name here. The suite imports ``samples`` (see :mod:`unigrad.samples`).

Tensors, models, optimizers and generators are the framework's own and are typed ``Any``.
"""

from __future__ import annotations

from unigrad.hooks import hookimpl, hookspec
from unigrad.protocols.arrays import ArraysModule
from unigrad.protocols.backend import Backend
from unigrad.protocols.block import BlockModule, Entry, Structure
from unigrad.protocols.checkpoint import CheckpointModule, Region
from unigrad.protocols.memory import MemoryModule, Meter
from unigrad.protocols.optimizer import OptimizerModule
from unigrad.protocols.rng import RngModule
from unigrad.protocols.spec import BackendSpec, Capability, Guarantee
from unigrad.protocols.tape import Engine, Graph, NativeEngine, RecordingRegion, TapeModule

__all__ = [
    "ArraysModule",
    "Backend",
    "BackendSpec",
    "BlockModule",
    "Capability",
    "CheckpointModule",
    "Engine",
    "Entry",
    "Graph",
    "Guarantee",
    "MemoryModule",
    "Meter",
    "NativeEngine",
    "OptimizerModule",
    "RecordingRegion",
    "Region",
    "RngModule",
    "Structure",
    "TapeModule",
    "hookimpl",
    "hookspec",
]

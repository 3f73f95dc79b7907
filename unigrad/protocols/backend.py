"""A loaded backend: the specification and its modules."""

from __future__ import annotations

from typing import Protocol

from unigrad.protocols.arrays import ArraysModule
from unigrad.protocols.block import BlockModule
from unigrad.protocols.checkpoint import CheckpointModule
from unigrad.protocols.memory import MemoryModule
from unigrad.protocols.optimizer import OptimizerModule
from unigrad.protocols.rng import RngModule
from unigrad.protocols.spec import BackendSpec, Capability
from unigrad.protocols.tape import TapeModule

__all__ = ["Backend"]


class Backend(Protocol):
    """A loaded backend: the specification and its modules."""

    @property
    def spec(self) -> BackendSpec:
        """The declaration."""

    @property
    def version(self) -> str:
        """Version of the framework."""

    @property
    def block(self) -> BlockModule:
        """Models."""

    @property
    def arrays(self) -> ArraysModule:
        """Tensors."""

    @property
    def tape(self) -> TapeModule:
        """Recording and vector-Jacobian products."""

    @property
    def checkpoint(self) -> CheckpointModule:
        """Recompute."""

    @property
    def rng(self) -> RngModule:
        """Random state."""

    @property
    def optimizer(self) -> OptimizerModule:
        """Optimizers."""

    @property
    def memory(self) -> MemoryModule:
        """Kept bytes."""

    def require(self, capability: Capability) -> None:
        """Raise ``UnsupportedError`` unless the backend declares the capability."""

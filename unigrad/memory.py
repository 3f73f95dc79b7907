"""kept_bytes: what a forward keeps alive for its backward."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from unigrad.errors import ArgumentError
from unigrad.protocols import Capability, Meter
from unigrad.tracing import refuse_traced
from unigrad.wrapping import each_block

__all__ = ["kept_bytes"]


def kept_bytes(block: Any) -> AbstractContextManager[Meter]:
    """Count the bytes of distinct storages that the forward inside the ``with`` keeps for backward.

    Parameters
    ----------
    block
        Block or native model, or a list of them, whose parameters and buffers are not counted. Nor is anything that existed
        before, as inputs; the region's output is.

    Returns
    -------
    context manager
        Gives an object whose ``bytes`` is set when the ``with`` ends.

    Raises
    ------
    UnsupportedError
        If the backend cannot count.
    ArgumentError
        If what this returned is entered a second time.

    Examples
    --------
    >>> import numpy as np
    >>> import unigrad
    >>> from unigrad_numpy import Tensor, nn
    >>> model, x = nn.Linear(2, 3), Tensor(np.ones((4, 2), "float32"))
    >>> with unigrad.kept_bytes(model) as meter:
    ...     y = model(x)
    >>> meter.bytes >= y.size * 4
    True
    """
    refuse_traced("counting bytes")
    blocks = list(each_block(block, "kept_bytes"))
    if not blocks:
        raise ArgumentError("kept_bytes needs a block, to know whose parameters are not counted")
    backend = blocks[0].backend
    backend.require(Capability.KEPT_BYTES)
    held = [
        tensor
        for item in blocks
        for table in (item.table(),)
        for tensor in (*table.parameters.values(), *table.buffers.values())
    ]
    return _Measurement(backend.memory.measure(held))


class _Measurement(AbstractContextManager[Meter]):
    """The measurement of a backend, entered once."""

    def __init__(self, measurement: AbstractContextManager[Meter]) -> None:
        self._measurement = measurement
        self._entered = False

    def __enter__(self) -> Meter:
        if self._entered:
            raise ArgumentError("a measurement is entered once; call kept_bytes again for another one")
        self._entered = True
        return self._measurement.__enter__()

    def __exit__(self, *exception: Any) -> bool | None:
        return self._measurement.__exit__(*exception)

"""Recompute in toygrad: the graph of a region is that of the plain run, its nodes get their pulls from a recompute.

See ``unigrad.protocols.CheckpointModule``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import Any

import numpy as np

from unigrad.protocols import Region
from unigrad_toy.recompute import Call


def run(region: Region) -> Any:
    return Call(region).forward()


def fingerprint(tensor: Any) -> Hashable:
    return hashlib.blake2b(np.ascontiguousarray(tensor.data).tobytes(), digest_size=16).digest()

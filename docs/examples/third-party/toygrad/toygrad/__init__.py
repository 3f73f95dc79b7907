"""A small differentiating framework, made to show how a backend for unigrad is written; it knows nothing of unigrad.

An operation on tensors that need a gradient leaves a :class:`Node`, which holds one function, ``pull``: from the cotangent of
the result to those of the inputs. Layers and most functions are written in terms of few operations with a ``pull`` of their own.
"""

from toygrad import functions, layers, optimizers, randomness, sequences
from toygrad.graph import Node, ReleasedError, StaleError, below, moment, no_record, pullback, release, state
from toygrad.layers import Module
from toygrad.tensor import Buffer, Parameter, Tensor, backward, record

__version__ = "1.2"

__all__ = [
    "Buffer",
    "Module",
    "Node",
    "Parameter",
    "ReleasedError",
    "StaleError",
    "Tensor",
    "backward",
    "below",
    "functions",
    "layers",
    "moment",
    "no_record",
    "optimizers",
    "pullback",
    "randomness",
    "record",
    "release",
    "sequences",
    "state",
]

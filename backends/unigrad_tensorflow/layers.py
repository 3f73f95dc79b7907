"""Roles and canonical names of the tensors of Keras' own layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import layers as k

__all__ = ["add", "canonical", "is_cell_holder", "is_norm", "role"]

_WEIGHT = {"kernel": "weight"}
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_CELL = {"kernel": "weight_ih", "recurrent_kernel": "weight_hh", "bias": "bias_ih"}

_CONVOLUTIONS = (k.Conv1D, k.Conv2D, k.Conv3D, k.DepthwiseConv1D, k.DepthwiseConv2D)
_KNOWN: list[tuple[Any, str, Mapping[str, str]]] = [
    ((k.Conv1DTranspose, k.Conv2DTranspose, k.Conv3DTranspose), "transposed conv", _WEIGHT),
    (_CONVOLUTIONS, "conv", _WEIGHT),
    ((k.Dense, k.EinsumDense), "dense", _WEIGHT),
    (k.Embedding, "embedding", {"embeddings": "weight"}),
    ((k.BatchNormalization, k.LayerNormalization, k.GroupNormalization), "norm", _NORM),
    ((k.LSTMCell, k.GRUCell, k.SimpleRNNCell), "recurrent", _CELL),
]


def add(kind: type, role: str, names: Mapping[str, str]) -> None:
    """Make another kind of layer known: its role, and the canonical names of its tensors by their names in Keras."""
    _KNOWN.insert(0, (kind, role, names))


def role(layer: Any) -> str:
    """Return the role of a layer's parameters."""
    return next((role for kinds, role, _ in _KNOWN if isinstance(layer, kinds)), "other")


def canonical(layer: Any, name: str, attribute: str) -> str:
    """Return the canonical name of a tensor of a layer.

    Parameters
    ----------
    layer
        The layer.
    name
        Its name in Keras.
    attribute
        The attribute under which it stands; an unknown layer's name for it.
    """
    for kinds, _, names in _KNOWN:
        if isinstance(layer, kinds):
            return names.get(name, name)
    return attribute


def is_cell_holder(layer: Any) -> bool:
    """Whether a layer is one of Keras' recurrent layers around its own cell, which get torch's names."""
    return isinstance(layer, k.LSTM | k.GRU | k.SimpleRNN)


def is_norm(layer: Any) -> bool:
    """Whether a layer has running statistics that its calls in training move."""
    return isinstance(layer, keras.layers.BatchNormalization)

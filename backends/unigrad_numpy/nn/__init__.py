"""Layers."""

from unigrad_numpy.nn.activations import (
    GELU,
    Dropout,
    Hardswish,
    Identity,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from unigrad_numpy.nn.attention import MultiheadAttention
from unigrad_numpy.nn.containers import ModuleList, Sequential
from unigrad_numpy.nn.dense import Dense, Embedding, LazyDense, Linear
from unigrad_numpy.nn.images import AvgPool2d, Conv2d, ConvTranspose2d, Flatten, MaxPool2d
from unigrad_numpy.nn.module import Module
from unigrad_numpy.nn.norms import BatchNorm, LayerNorm
from unigrad_numpy.nn.recurrent import GRU, LSTM, GRUCell, LSTMCell
from unigrad_numpy.tensor import Parameter

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "AvgPool2d",
    "BatchNorm",
    "Conv2d",
    "ConvTranspose2d",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "Hardswish",
    "Identity",
    "LSTMCell",
    "LayerNorm",
    "LazyDense",
    "Linear",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "ReLU",
    "ReLU6",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
]

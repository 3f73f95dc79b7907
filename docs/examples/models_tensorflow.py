"""The models of the examples on TensorFlow with Keras; models_torch.py is its twin.

Keras has the channels last and kernels ``(height, width, in, out)`` and ``(in, out)``; :func:`from_reference` turns weights of the other
examples' layout around, and the network turns the images.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class Network(keras.Model):
    """A small convolutional classifier with one branch that is defined and never called."""

    def __init__(self, dropout: float, dtype: str) -> None:
        super().__init__(dtype=dtype)
        norm = {"momentum": 0.9, "epsilon": 1e-5, "dtype": dtype}
        self.features = keras.Sequential(
            [
                layers.Conv2D(16, 3, padding="same", dtype=dtype),
                layers.BatchNormalization(**norm),
                layers.ReLU(dtype=dtype),
                layers.Conv2D(32, 3, padding="same", dtype=dtype),
                layers.BatchNormalization(**norm),
                layers.ReLU(dtype=dtype),
                layers.MaxPooling2D(2, dtype=dtype),
                layers.Permute((3, 1, 2), dtype=dtype),  # the order in which the others flatten
                layers.Flatten(dtype=dtype),
            ]
        )
        self.head = keras.Sequential(
            [
                layers.Dropout(dropout, dtype=dtype),
                layers.Dense(64, dtype=dtype),
                layers.ReLU(dtype=dtype),
                layers.Dropout(dropout, dtype=dtype),
                layers.Dense(10, dtype=dtype),
            ]
        )
        self.auxiliary = layers.Dense(10, dtype=dtype)
        self.auxiliary.build((None, 512))

    def call(self, images: tf.Tensor) -> tf.Tensor:
        """Return logits ``(batch, 10)`` of images ``(batch, 1, 8, 8)``."""
        return self.head(self.features(tf.transpose(images, (0, 2, 3, 1))))


def build(dropout: float, dtype: str) -> Network:
    """Return the network in the given dtype, its variables made."""
    network = Network(dropout, dtype)
    network(tf.zeros((1, 1, 8, 8), dtype))
    return network


def to_reference(role: str, array: np.ndarray) -> np.ndarray:
    """Return a weight in the layout of the other examples: outputs first, kernels last."""
    return np.moveaxis(array, (-1, -2), (0, 1)) if role in ("dense", "conv") and array.ndim > 1 else array


def from_reference(role: str, array: np.ndarray) -> np.ndarray:
    """Undo :func:`to_reference`."""
    return np.moveaxis(array, (0, 1), (-1, -2)) if role in ("dense", "conv") and array.ndim > 1 else array


def tensor(array: np.ndarray) -> tf.Tensor:
    """Return a native tensor of the values."""
    return tf.constant(array)


def parameter(array: np.ndarray) -> tf.Variable:
    """Return a trainable leaf of the values."""
    return tf.Variable(array)


def loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Return the mean cross-entropy."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def sgd(rate: float) -> Callable[[list[Any]], Any]:
    """Return a factory of stochastic gradient descent with momentum 0.9."""
    return lambda parameters: keras.optimizers.SGD(rate, momentum=0.9)

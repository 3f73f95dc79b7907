"""Segment small volumes with a 3-D U-Net of Keras whose two halves are checkpointed: the same training, in less memory.

    python docs/examples/unet3d_keras.py

The first region returns two tensors, one of them the skip connection; the second takes both. The model is trained by ``fit`` with and
without checkpoints from the same seed, saved whole and by weights, and loaded again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import unigrad


def convolution(channels: int) -> keras.Sequential:
    """Return a convolution with batch normalization and ReLU."""
    return keras.Sequential(
        [
            layers.Conv3D(channels, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]
    )


@keras.saving.register_keras_serializable("unet3d")
class Encoder(layers.Layer):
    """Two convolutions and a pooling; returns what goes down, and what skips."""

    def __init__(self, channels: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.channels = channels
        self.first, self.second = convolution(channels), convolution(channels)
        self.pool = layers.MaxPooling3D(2)

    def build(self, shape: Any) -> None:
        """Make the variables of the layers inside."""
        self.first.build(shape)
        self.second.build((*shape[:-1], self.channels))

    def call(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return half the resolution, and the full one."""
        skip = self.second(self.first(x))
        return self.pool(skip), skip

    def get_config(self) -> dict[str, Any]:
        """Return what Keras saves of it."""
        return {**super().get_config(), "channels": self.channels}


@keras.saving.register_keras_serializable("unet3d")
class Decoder(layers.Layer):
    """Upsamples what comes from below, joins what skipped, and convolves."""

    def __init__(self, channels: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.channels = channels
        self.deep, self.last = convolution(2 * channels), convolution(channels)
        self.up = layers.UpSampling3D(2)
        self.join = layers.Concatenate()
        self.drop = layers.Dropout(0.1, seed=7)

    def build(self, deep_shape: Any, skip_shape: Any) -> None:
        """Make the variables of the layers inside."""
        self.deep.build(deep_shape)
        self.last.build((*skip_shape[:-1], 3 * self.channels))

    def call(self, deep: tf.Tensor, skip: tf.Tensor) -> tf.Tensor:
        """Return features at the resolution of ``skip``."""
        return self.last(self.drop(self.join([self.up(self.deep(deep)), skip])))

    def get_config(self) -> dict[str, Any]:
        """Return what Keras saves of it."""
        return {**super().get_config(), "channels": self.channels}


def unet(size: int, channels: int, checkpoint: bool) -> keras.Model:
    """Return the compiled model, its regions checkpointed or not."""
    keras.utils.set_random_seed(0)
    wrapped = unigrad.checkpoint if checkpoint else lambda layer: layer
    volume = keras.Input((size, size, size, 1))
    down, skip = wrapped(Encoder(channels, name="encoder"))(volume)
    features = wrapped(Decoder(channels, name="decoder"))(down, skip)
    model = keras.Model(volume, layers.Conv3D(1, 1, activation="sigmoid", name="head")(features))
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
    return model


def spheres(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy volumes with a bright sphere each, and where it is."""
    draw = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"), -1)
    centres = draw.uniform(size * 0.3, size * 0.7, (count, 1, 1, 1, 3))
    inside = (np.linalg.norm(grid - centres, axis=-1) < size * 0.3).astype("float32")[..., None]
    return inside + draw.normal(0, 0.5, inside.shape).astype("float32"), inside


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8, help="voxels along an edge, even")
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    if options.size < 4 or options.size % 2:
        parser.error("--size is an even number of at least 4")
    return options


def main() -> int:
    """Train, compare, save and load."""
    options = arguments()
    volumes, masks = spheres(12, options.size)
    trained = {}
    for checkpoint in (False, True):
        model = unet(options.size, options.channels, checkpoint)
        history = model.fit(volumes, masks, batch_size=4, epochs=options.epochs, shuffle=False, verbose=0).history
        trained[checkpoint] = model
        name = "checkpointed" if checkpoint else "plain"
        print(
            f"{name:12} loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.4f}, accuracy {history['accuracy'][-1]:.4f}"
        )
    plain, rerun = (trained[checkpoint].get_weights() for checkpoint in (False, True))
    difference = max(float(np.abs(one - two).max()) for one, two in zip(plain, rerun, strict=True))
    print(f"largest difference of a weight after training: {difference:.1e}")
    with tempfile.TemporaryDirectory() as folder:
        whole, weights = Path(folder) / "unet.keras", Path(folder) / "unet.weights.h5"
        trained[True].save(whole)
        trained[True].save_weights(weights)
        again = keras.models.load_model(whole)
        fresh = unet(options.size, options.channels, checkpoint=False)
        fresh.load_weights(weights)
    expected = trained[True].predict(volumes, verbose=0)
    for name, model in (("whole", again), ("weights, into the plain model", fresh)):
        same = np.array_equal(model.predict(volumes, verbose=0), expected)
        print(f"saved {name}: {'the same predictions' if same else 'OTHER PREDICTIONS'}")
        if not same:
            return 1
    loss = again.fit(volumes, masks, batch_size=4, shuffle=False, verbose=0).history["loss"][0]
    kept = [layer.name for layer in again.layers if hasattr(layer, "enabled")]
    print(f"loaded and trained on: loss {loss:.4f}; checkpointed: {', '.join(kept)}")
    return 0 if difference < 1e-6 and kept == ["encoder", "decoder"] else 1


if __name__ == "__main__":
    sys.exit(main())

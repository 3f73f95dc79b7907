"""The suite's native layers: of Keras, with exactly the given values in the reference layout.

Layers whose layout in Keras is another (dense, convolutions, gates) are subclasses that hold the reference layout, so that the suite
compares the same arrays on every backend. Keras' own layers are tested beside the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from unigrad.samples import NoSampleError
from unigrad_tensorflow import layers as known
from unigrad_tensorflow.arrays import from_numpy, is_variable
from unigrad_tensorflow.copies import copy_into
from unigrad_tensorflow.sample_operations import gelu

__all__ = ["Model", "make_layer"]


def _name(dtype: Any) -> str:
    return str(tf.as_dtype(dtype).name)


class Plain(keras.layers.Layer):
    """A layer that takes its arguments as they are."""

    def __init__(self, dtype: str = "float32") -> None:
        super().__init__(dtype=dtype, autocast=False)
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True
        self.built = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy_into(self, memo)  # Keras copies by saving, which asks for a configuration

    def hold(self, name: str, value: Any, trainable: bool = True) -> Any:
        """Make a variable with the given values an attribute."""
        if not is_variable(value):
            value = keras.Variable(
                np.asarray(value), dtype=_name(np.asarray(value).dtype), trainable=trainable, name=name
            )
        self._tracker.unlock()
        setattr(self, name, value)
        return value


class Model(tf.Module):
    """Named members and a forward that is a function of the model and its arguments."""

    def __init__(
        self,
        forward: Callable[..., Any],
        parameters: Mapping[str, Any],
        buffers: Mapping[str, Any],
        layers: Mapping[str, Any],
        generators: Mapping[str, int],
    ) -> None:
        super().__init__()
        self._forward = forward
        for name, value in parameters.items():
            setattr(self, name, value if is_variable(value) else tf.Variable(from_numpy(value), name=name))
        for name, value in buffers.items():
            setattr(self, name, tf.Variable(from_numpy(value), trainable=False, name=name))
        for name, layer in layers.items():
            setattr(self, name, layer)
        for name, seed in generators.items():
            setattr(self, name, keras.random.SeedGenerator(seed))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._forward(self, *args, **kwargs)


class Dense(Plain):
    """``x @ weight.T + bias``."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        super().__init__(_name(np.asarray(weight).dtype))
        self.hold("weight", weight)
        self.bias = None
        if bias is not None:
            self.hold("bias", bias)

    def call(self, x: Any) -> Any:
        """Return the product."""
        y = tf.matmul(x, self.weight.value, transpose_b=True)
        return y if self.bias is None else tf.nn.bias_add(y, self.bias.value)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return (*input_shape[:-1], self.weight.shape[0])


class Convolution(Plain):
    """Of images with the channels on axis 1."""

    def __init__(self, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0) -> None:
        super().__init__(_name(np.asarray(weight).dtype))
        self.hold("weight", weight)
        self.bias = None
        if bias is not None:
            self.hold("bias", bias)
        self._stride, self._padding = stride, padding

    def _finish(self, y: Any) -> Any:
        if self.bias is not None:
            y = tf.nn.bias_add(y, self.bias.value)
        return tf.transpose(y, (0, 3, 1, 2))

    def call(self, x: Any) -> Any:
        """Return the convolution."""
        p = self._padding
        x = tf.transpose(x, (0, 2, 3, 1))
        kernel = tf.transpose(self.weight.value, (2, 3, 1, 0))
        return self._finish(tf.nn.conv2d(x, kernel, self._stride, [[0, 0], [p, p], [p, p], [0, 0]]))


class TransposedConvolution(Convolution):
    """The transpose of :class:`Convolution`."""

    def call(self, x: Any) -> Any:
        """Return the transposed convolution."""
        p, s = self._padding, self._stride
        x = tf.transpose(x, (0, 2, 3, 1))
        _, outputs, height, width = self.weight.shape
        kernel = tf.transpose(self.weight.value, (2, 3, 1, 0))
        rows, columns = ((x.shape[1] - 1) * s - 2 * p + height, (x.shape[2] - 1) * s - 2 * p + width)
        shape = (tf.shape(x)[0], rows, columns, outputs)
        return self._finish(tf.nn.conv2d_transpose(x, kernel, shape, s, [[0, 0], [p, p], [p, p], [0, 0]]))


class MaxPool(Plain):
    """Maximum over windows, the channels on axis 1."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def call(self, x: Any) -> Any:
        """Return the maxima."""
        y = tf.nn.max_pool2d(tf.transpose(x, (0, 2, 3, 1)), self._size, self._size, "VALID")
        return tf.transpose(y, (0, 3, 1, 2))


class Function(Plain):
    """A function of one tensor."""

    def __init__(self, function: Callable[[Any], Any], flattens: bool = False) -> None:
        super().__init__()
        self._function = function
        self._flattens = flattens

    def call(self, x: Any) -> Any:
        """Return the value."""
        return self._function(x)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return (input_shape[0], int(np.prod(input_shape[1:]))) if self._flattens else input_shape


def _hardswish(x: Any) -> Any:
    return x * tf.nn.relu6(x + 3) / 6


class Embedding(keras.layers.Embedding):
    """Keras' own, with a row that takes no gradient."""

    def __init__(self, weight: Any, padding_index: int | None = None) -> None:
        weight = np.asarray(weight)
        super().__init__(*weight.shape, dtype=_name(weight.dtype))
        self.build((None,))
        self._embeddings.assign(weight)
        self._padding_index = padding_index

    def call(self, inputs: Any) -> Any:
        """Look the rows up."""
        y = super().call(inputs)
        if self._padding_index is None:
            return y
        return tf.where((inputs == self._padding_index)[..., None], tf.stop_gradient(y), y)


class BatchNorm(keras.layers.BatchNormalization):
    """Keras' own on axis 1, where ``momentum`` is the weight of the new value."""

    def __init__(self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5, affine: bool = True) -> None:
        super().__init__(axis=1, momentum=1 - momentum, epsilon=epsilon, center=affine, scale=affine)
        self.build((None, channels))
        self.input_spec = None

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Normalize over all axes but the channels', of which Keras asks to know the number before."""
        self._reduction_axes = [axis for axis in range(len(inputs.shape)) if axis != 1]
        return super().call(inputs, training=training, mask=mask)


class LayerNorm(keras.layers.LayerNormalization):
    """Keras' own."""

    def __init__(self, features: int, epsilon: float = 1e-5) -> None:
        super().__init__(epsilon=epsilon)
        self.build((None, features))


class Dropout(keras.layers.Dropout):
    """Keras' own, which draws from the global generator in place of one of its own."""

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.seed_generator = None
        self._convert_input_args = False

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Drop in training."""
        return super().call(inputs, training=training)


class LazyDense(keras.layers.Layer):
    """A dense layer that makes its variables at its first call."""

    def __init__(self, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self._outputs, self._with_bias = outputs, bias
        self.bias = None

    def build(self, input_shape: Any) -> None:
        """Make the variables."""
        self.weight = self.add_weight(shape=(self._outputs, input_shape[-1]), name="weight")
        if self._with_bias:
            self.bias = self.add_weight(shape=(self._outputs,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        """Return the product."""
        y = tf.matmul(x, self.weight.value, transpose_b=True)
        return y if self.bias is None else tf.nn.bias_add(y, self.bias.value)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the outputs."""
        return (*input_shape[:-1], self._outputs)


class Recurrent(Plain):
    """Gates in the order of the reference; returns the outputs of all steps."""

    def __init__(self, input_weight: Any, hidden_weight: Any, input_bias: Any = None, hidden_bias: Any = None) -> None:
        super().__init__(_name(np.asarray(input_weight).dtype))
        self.hold("weight_ih_l0", input_weight)
        self.hold("weight_hh_l0", hidden_weight)
        self.bias_ih_l0 = self.bias_hh_l0 = None
        if input_bias is not None:
            self.hold("bias_ih_l0", input_bias)
            self.hold("bias_hh_l0", hidden_bias)

    def _products(self, x: Any, h: Any, parts: int) -> tuple[list[Any], list[Any]]:
        left = tf.matmul(x, self.weight_ih_l0.value, transpose_b=True)
        right = tf.matmul(h, self.weight_hh_l0.value, transpose_b=True)
        if self.bias_ih_l0 is not None:
            left, right = left + self.bias_ih_l0.value, right + self.bias_hh_l0.value
        return tf.split(left, parts, 1), tf.split(right, parts, 1)

    def call(self, x: Any) -> Any:
        """Run over ``x`` of shape ``(batch, steps, features)``."""
        state = self._start(x)
        outputs = []
        for index in range(x.shape[1]):
            state = self._step(x[:, index], state)
            outputs.append(state[0])
        return tf.stack(outputs, 1)

    def _zeros(self, x: Any) -> Any:
        return tf.zeros((x.shape[0], self.weight_hh_l0.shape[1]), x.dtype)


class LSTM(Recurrent):
    """Long short-term memory."""

    def _start(self, x: Any) -> Any:
        return self._zeros(x), self._zeros(x)

    def _step(self, x: Any, state: Any) -> Any:
        h, c = state
        left, right = self._products(x, h, 4)
        i, f, g, o = (a + b for a, b in zip(left, right, strict=True))
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c


class GRU(Recurrent):
    """Gated recurrent unit, its reset gate after the product."""

    def _start(self, x: Any) -> Any:
        return (self._zeros(x),)

    def _step(self, x: Any, state: Any) -> Any:
        (h,) = state
        left, right = self._products(x, h, 3)
        r, z = tf.sigmoid(left[0] + right[0]), tf.sigmoid(left[1] + right[1])
        n = tf.tanh(left[2] + r * right[2])
        return ((1 - z) * n + z * h,)


class Attention(Plain):
    """Multi-head attention of an input with itself."""

    def __init__(self, features: int, heads: int, seed: int) -> None:
        super().__init__()
        numbers = np.random.default_rng(seed)

        def draw(*shape: int) -> Any:
            return (numbers.standard_normal(shape) / np.sqrt(features)).astype("float32")

        self.hold("in_proj_weight", draw(3 * features, features))
        self.hold("in_proj_bias", draw(3 * features))
        self.out_proj = Dense(draw(features, features), draw(features))
        self._heads = heads

    def call(self, x: Any) -> Any:
        """Attend over ``x`` of shape ``(batch, steps, features)``."""
        batch, steps, features = x.shape
        width = features // self._heads
        projected = tf.matmul(x, self.in_proj_weight.value, transpose_b=True) + self.in_proj_bias.value
        q, k, v = (
            tf.transpose(tf.reshape(part, (batch, steps, self._heads, width)), (0, 2, 1, 3))
            for part in tf.split(projected, 3, 2)
        )
        scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / np.sqrt(width).astype("float32"), -1)
        mixed = tf.transpose(tf.matmul(scores, v), (0, 2, 1, 3))
        return self.out_proj(tf.reshape(mixed, (batch, steps, features)))


class Chain(Plain):
    """Layers in order; Keras' own refuses one that stands twice."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        self._count = len(layers)
        for index, layer in enumerate(layers):
            setattr(self, str(index), layer)

    def call(self, x: Any) -> Any:
        """Call the layers in order."""
        for index in range(self._count):
            x = getattr(self, str(index))(x)
        return x


def _sequential(layers: Sequence[Any]) -> Any:
    return Chain(layers)


for _kind, _role in ((Dense, "dense"), (LazyDense, "dense"), (Convolution, "conv"), (Recurrent, "recurrent")):
    known.add(_kind, _role, {})
known.add(TransposedConvolution, "transposed conv", {})

_MAKERS: Mapping[str, Callable[..., Any]] = {
    "dense": Dense,
    "conv2d": Convolution,
    "conv_transpose2d": TransposedConvolution,
    "max_pool2d": MaxPool,
    "batch_norm": BatchNorm,
    "layer_norm": LayerNorm,
    "dropout": Dropout,
    "embedding": Embedding,
    "flatten": lambda: Function(lambda x: tf.reshape(x, (x.shape[0], -1)), flattens=True),
    "relu": lambda: Function(tf.nn.relu),
    "tanh": lambda: Function(tf.tanh),
    "gelu": lambda: Function(gelu),
    "hardswish": lambda: Function(_hardswish),
    "lazy_dense": LazyDense,
    "lstm": LSTM,
    "gru": GRU,
    "attention": Attention,
    "sequential": _sequential,
}


def make_layer(kind: str, config: Mapping[str, Any]) -> Any:
    """Return a layer of a kind; ``NoSampleError`` if there is none."""
    if kind not in _MAKERS:
        raise NoSampleError(f"there is no sample layer {kind!r} of Keras")
    return _MAKERS[kind](**config)

"""What a backend supplies to the conformance suite: native tensors, layers, models and operations.

The suite writes its models and losses once, over these. A backend's module ``samples`` satisfies
:class:`Samples`. All arrays are given in the reference layout (that of torch): dense ``(outputs, inputs)``,
convolution ``(out, in, *kernel)``, transposed convolution ``(in, out, *kernel)``, images ``(batch, channels, height, width)``,
gates ``i f g o`` and ``r z n``; the backend converts. Conventions: batch normalization has ``momentum`` as the
weight of the new value and says in ``conventions`` which running variance it keeps.

Beyond these functions the suite uses on native tensors the operators ``+ - * / @`` with tensors and Python scalars, unary ``-``,
and comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["LAYER_KINDS", "Accuracy", "Bench", "NoSampleError", "Operations", "Samples"]

LAYER_KINDS: Mapping[str, tuple[str, ...]] = {
    "dense": ("weight", "bias"),
    "conv2d": ("weight", "bias", "stride", "padding"),
    "conv_transpose2d": ("weight", "bias", "stride", "padding"),
    "max_pool2d": ("size",),
    "batch_norm": ("channels", "momentum", "epsilon", "affine"),
    "layer_norm": ("features", "epsilon"),
    "dropout": ("rate",),
    "embedding": ("weight", "padding_index"),
    "flatten": (),
    "relu": (),
    "tanh": (),
    "gelu": (),
    "hardswish": (),
    "lazy_dense": ("outputs", "bias"),
    "lstm": ("input_weight", "hidden_weight", "input_bias", "hidden_bias"),
    "gru": ("input_weight", "hidden_weight", "input_bias", "hidden_bias"),
    "attention": ("features", "heads", "seed"),
    "sequential": ("layers",),
}
"""Kind of layer -> names of the keyword arguments of ``Samples.layer``; ``bias`` may be None everywhere.

Recurrent layers map ``(batch, steps, features)`` to the outputs of all steps, without the last state. Attention is that of the input
with itself; its parameters ``in_proj_weight``, ``in_proj_bias``, ``out_proj.weight`` and ``out_proj.bias`` are drawn in this order
by ``numpy.random.default_rng(seed).standard_normal`` and divided by the root of the features.
"""


class NoSampleError(Exception):
    """The backend has no sample of this kind; the test's cell in the matrix reads 'no sample'."""


@dataclass(frozen=True)
class Accuracy:
    """How far an elementary function of the framework is from the mathematics.

    Parameters
    ----------
    error
        Largest error of its values and of its derivative for arguments up to 10, relative to the true value, or to one where that is
        smaller. The suite measures it: more than is stated fails, and so does less than a quarter of it.
    reason
        Why, in one sentence without a full stop; it stands in the report.
    """

    error: float
    reason: str


class Operations(Protocol):
    """Native operations on native tensors, all recorded."""

    def exp(self, x: Any) -> Any: ...
    def log(self, x: Any) -> Any: ...
    def sqrt(self, x: Any) -> Any: ...
    def tanh(self, x: Any) -> Any: ...
    def sin(self, x: Any) -> Any: ...
    def cos(self, x: Any) -> Any: ...
    def sigmoid(self, x: Any) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def relu6(self, x: Any) -> Any: ...
    def gelu(self, x: Any) -> Any: ...
    def hardswish(self, x: Any) -> Any: ...
    def absolute(self, x: Any) -> Any: ...
    def round(self, x: Any) -> Any: ...
    def sign(self, x: Any) -> Any: ...
    def softmax(self, x: Any, axis: int) -> Any: ...
    def maximum(self, x: Any, y: Any) -> Any: ...
    def minimum_value(self, x: Any, value: float) -> Any:
        """Clamp from below at ``value``."""

    def norm(self, x: Any) -> Any:
        """Return the Euclidean norm of all elements by the framework's own norm function."""

    def sum(self, x: Any, axis: int | None = None) -> Any: ...
    def mean(self, x: Any, axis: int | None = None) -> Any: ...
    def max(self, x: Any, axis: int | None = None) -> Any:
        """Reduce-max; without axis over all elements."""

    def argmax(self, x: Any) -> Any: ...
    def matmul(self, x: Any, y: Any) -> Any: ...
    def reshape(self, x: Any, shape: Sequence[int]) -> Any: ...
    def transpose(self, x: Any, axes: Sequence[int]) -> Any: ...
    def index(self, x: Any, key: Any) -> Any:
        """``x[key]``; key is an int, a slice, a tuple of these, or an integer NumPy array along axis 0."""

    def take(self, table: Any, ids: Any) -> Any:
        """Rows of ``table`` at the integer tensor ``ids``."""

    def concat(self, tensors: Sequence[Any], axis: int) -> Any: ...
    def split(self, x: Any, parts: int, axis: int) -> Sequence[Any]:
        """Equal parts by the framework's own multi-output split."""

    def where(self, condition: Any, x: Any, y: Any) -> Any: ...
    def stop_gradient(self, x: Any) -> Any: ...
    def cast(self, x: Any, dtype: str) -> Any: ...
    def set_item(self, x: Any, index: int, value: float) -> Any:
        """Overwrite one element, in place where the framework has in-place operations; returns the tensor to go on with."""

    def dropout(self, x: Any, rate: float) -> Any:
        """Dropout from the global generator, always on."""

    def normal(self, shape: Sequence[int]) -> Any:
        """Draw standard normal noise from the global generator."""

    def uniform(self, shape: Sequence[int]) -> Any:
        """Draw uniform noise in [0, 1) from the global generator."""

    def cross_entropy(self, logits: Any, labels: Any) -> Any:
        """Mean over the batch; labels are an integer tensor."""


class Samples(Protocol):
    """Native test material of one backend.

    A backend with another engine than the pure one also has ``engines``: the name of each -> a function that takes a native model and
    returns one of the same parameters that needs it.

    A backend whose framework computes an elementary function (``exp log sqrt tanh sin cos sigmoid gelu``) less exactly than to some units
    in the last place also has ``accuracy``: name of the dtype -> name of the function -> :class:`Accuracy`. What a test records
    after it used such a function may differ from another backend's by that error more.
    """

    operations: Operations
    conventions: Mapping[str, str]
    """``{"running_variance": "unbiased" | "biased", "in_place": "yes" | "no", ...}``"""

    def tensor(self, array: Any, dtype: str | None = None) -> Any:
        """Native tensor with a copy of the values, needing no gradient; dtype defaults to that of the array."""

    def leaf(self, array: Any, dtype: str | None = None) -> Any:
        """Native trainable leaf that belongs to no model."""

    def model(
        self,
        forward: Callable[..., Any],
        *,
        parameters: Mapping[str, Any] | None = None,
        buffers: Mapping[str, Any] | None = None,
        layers: Mapping[str, Any] | None = None,
        generators: Mapping[str, int] | None = None,
    ) -> Any:
        """Native model with named members and ``forward(self, *args, **kwargs)``.

        Members are attributes of ``self``: ``parameters`` (arrays or native parameters, the latter to tie) as trainable
        parameters, ``buffers`` (arrays) as buffers that ``set_buffer`` writes, ``layers`` as sub-layers, ``generators`` (seeds) as the
        framework's own random generators.
        """

    def layer(self, kind: str, **config: Any) -> Any:
        """Native layer of a kind in ``LAYER_KINDS``, with exactly the given values; ``NoSampleError`` if there is none."""

    def set_buffer(self, model: Any, name: str, value: Any) -> None:
        """Write a native tensor into a buffer of ``model`` from inside a forward."""

    def own_normal(self, generator: Any, shape: Sequence[int]) -> Any:
        """Draw standard normal noise from a generator made by ``model(generators=...)`` or ``generator``."""

    def generator(self, seed: int) -> Any:
        """Native random generator that belongs to no model."""

    def no_grad(self) -> AbstractContextManager[Any]:
        """Return the framework's own way to switch recording off."""

    def mixed_precision(self, dtype: str) -> AbstractContextManager[Any]:
        """Return the framework's own mixed-precision context."""

    def call_native_gradient(self, function: Callable[[Any], Any], x: Any) -> Any:
        """Return the gradient of a scalar function at ``x`` by the framework's own idiom."""

    def sgd(self, rate: float, momentum: float = 0.0, decay: float = 0.0) -> Callable[..., Any]:
        """Return a factory for ``unigrad.Optimizer``: stochastic gradient descent."""

    def adamw(self, rate: float, decay: float = 0.0) -> Callable[..., Any]:
        """Return a factory for ``unigrad.Optimizer``: AdamW."""

    def change(self, parameter: Any, array: Any) -> None:
        """Write new values as the framework's own optimizers do."""

    def change_hidden(self, parameter: Any, array: Any) -> None:
        """Write new values in a way the framework does not notice; ``NoSampleError`` if there is none."""

    def storage_alive(self, tensor: Any) -> Callable[[], bool]:
        """Return a function that tells whether the tensor's memory is still alive, without keeping it alive."""

    def shared_tensor(self, array: Any) -> Any:
        """Native tensor sharing memory with the NumPy array; ``NoSampleError`` if there is none."""


class Bench(Protocol):
    """Module ``bench`` of a backend: the framework's own idiom, for ``unigrad bench``.

    It may also have ``BOUNDS``: what the figures ``"step, large"``, ``"step, small"``, ``"input"``, ``"unrelated"``,
    ``"checkpoint, time"``, ``"checkpoint, peak"``, ``"checkpoint / plain, peak"``, ``"compiled checkpoint / plain, peak"``,
    ``"microbatch, peak"``, ``"microbatch with dropout, peak"``, ``"native engine"`` and ``"several processes"`` may be at most. If the
    framework runs operations in several threads at once, ``threads(count)`` returns the variables of the environment of a process in
    which it has this many of them. ``KEEPS_MEMORY`` is true if it gives back no memory between steps, so that the first one alone shows a
    peak. A backend with another engine than the
    pure one may have ``hooked(model)``, which makes a model need it, and, if processes can share a model,
    ``processes(folder, rank, count)``, a context in which this process is one of several that meet in a folder, and ``averaged(model)``,
    which has them average its gradients. One that declares compiled steps may have ``gradients(model, parameters)``, its own step as a
    function from an input to the gradients, and ``compiled(function, x)``, which returns a call of the compiled function on ``x``.
    """

    def stack(self, layers: int, width: int, activation: str | None, dropout: float = 0.0) -> Any:
        """Native sequential model of ``layers`` dense layers.

        Each is followed by the activation (``"relu" "tanh"`` or None) and, if a rate is given, by a dropout that is in force.
        """

    def data(self, batch: int, width: int) -> Any:
        """Native float32 input ``(batch, width)`` that needs no gradient."""

    def loss(self, output: Any) -> Any:
        """Return the mean of squares of an output."""

    def step(self, model: Callable[[Any], Any], parameters: Sequence[Any], x: Any) -> Callable[[], None]:
        """Return the framework's own step: clear gradients, forward, backward, by the idiom that its manual teaches."""

    def input_step(self, model: Callable[[Any], Any], x: Any) -> Callable[[], None]:
        """Return the framework's own way to a gradient of the input alone."""

    def recompute(self, segments: Sequence[Any]) -> Callable[[Any], Any] | None:
        """Return a function that runs the segments in order, each in the framework's own recompute; None if it has none."""

    def chain(self, segments: Sequence[Any]) -> Any:
        """Return a native model that runs the native ``segments`` in order."""

    def unrelated(self, count: int) -> list[Any]:
        """Leaf tensors that need and hold a gradient where the framework's own tools look."""

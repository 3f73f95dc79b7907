"""A differentiating framework of one file, made to show how a backend for unigrad is written.

It knows nothing of unigrad. Tensors are float32 or float64; operations on tensors that need a gradient remember their
inputs and a function from the cotangent of the result to those of the inputs.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

__version__ = "1.2"

recording = True
use_hooks: list[Callable[[Tensor], Any]] = []
"""Called with each trainable leaf that a recorded operation uses."""
call_hooks: list[Callable[[Module], Any]] = []
"""Called with each module that is about to run."""
generator = np.random.default_rng(0)
_serial = itertools.count()


def seed(number: int) -> None:
    """Seed the one random generator of the framework."""
    global generator
    generator = np.random.default_rng(number)


@contextlib.contextmanager
def no_record() -> Iterator[None]:
    """Switch recording off for a while."""
    global recording
    before, recording = recording, False
    try:
        yield
    finally:
        recording = before


class Tensor:
    """An array; ``inputs`` and ``pull`` are there if an operation was recorded, and gone once released."""

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None) -> None:
        self.data = np.array(data, dtype=dtype, order="C")
        if self.data.dtype not in (np.float32, np.float64):
            raise TypeError(f"toygrad has float32 and float64 only, not {self.data.dtype}")
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None
        self.version = 0
        self.inputs: tuple[Tensor, ...] = ()
        self.versions: tuple[int, ...] = ()
        self.pull: Callable[[np.ndarray], Sequence[np.ndarray | None]] | None = None
        self.released = False
        self.serial = next(_serial)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self.pull is None and not self.released

    def write(self, data: Any) -> None:
        """Overwrite the values in place."""
        self.data[...] = data
        self.version += 1

    def __add__(self, other: Any) -> Tensor:
        other = as_tensor(other, self)
        return record(self.data + other.data, (self, other), lambda c: (_fold(c, self), _fold(c, other)))

    def __mul__(self, other: Any) -> Tensor:
        other = as_tensor(other, self)
        a, b = self.data, other.data
        return record(a * b, (self, other), lambda c: (_fold(c * b, self), _fold(c * a, other)))

    def __matmul__(self, other: Tensor) -> Tensor:
        a, b = self.data, other.data

        def pull(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return _fold(c @ np.swapaxes(b, -1, -2), self), _fold(np.swapaxes(a, -1, -2) @ c, other)

        return record(a @ b, (self, other), pull)

    def __neg__(self) -> Tensor:
        return self * -1.0

    def __sub__(self, other: Any) -> Tensor:
        return self + -as_tensor(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        other = as_tensor(other, self)
        a, b = self.data, other.data
        return record(a / b, (self, other), lambda c: (_fold(c / b, self), _fold(-c * a / (b * b), other)))

    def __rsub__(self, other: Any) -> Tensor:
        return as_tensor(other, self) - self

    def __rtruediv__(self, other: Any) -> Tensor:
        return as_tensor(other, self) / self

    def __float__(self) -> float:
        return float(self.data)

    def __gt__(self, other: Any) -> np.ndarray:
        return self.data > as_tensor(other, self).data

    __radd__ = __add__
    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> Tensor:
        def pull(c: np.ndarray) -> tuple[np.ndarray]:
            whole = np.zeros_like(self.data)
            np.add.at(whole, key, c)
            return (whole,)

        return record(self.data[key], (self,), pull)

    def __repr__(self) -> str:
        return f"Tensor({self.data!r}, requires_grad={self.requires_grad})"


class Parameter(Tensor):
    """A leaf that a module trains."""

    def __init__(self, data: Any, dtype: Any = None) -> None:
        super().__init__(data, requires_grad=True, dtype=dtype)


class Buffer(Tensor):
    """A tensor that a module keeps without training it."""


def as_tensor(value: Any, like: Tensor) -> Tensor:
    """Return a value as a tensor of the dtype of another; a tensor is returned as it is."""
    return value if isinstance(value, Tensor) else Tensor(value, dtype=like.data.dtype)


def record(data: np.ndarray, inputs: tuple[Tensor, ...], pull: Callable[..., Sequence[np.ndarray | None]]) -> Tensor:
    """Return a new tensor that remembers how it was made, if an input needs a gradient."""
    result = Tensor(data)
    if recording and any(x.requires_grad for x in inputs):
        result.requires_grad = True
        result.inputs, result.versions, result.pull = inputs, tuple(x.version for x in inputs), pull
        for x in inputs:
            _tell(x)
    return result


def _tell(x: Tensor) -> None:
    if recording and x.requires_grad and x.is_leaf:
        for hook in use_hooks:
            hook(x)


def detach(x: Tensor) -> Tensor:
    """Return the values without their graph."""
    _tell(x)
    return Tensor(x.data)


def _fold(cotangent: np.ndarray, to: Tensor) -> np.ndarray:
    """Undo broadcasting."""
    cotangent = cotangent.sum(axis=tuple(range(cotangent.ndim - to.data.ndim)))
    stretched = tuple(i for i, n in enumerate(to.data.shape) if n == 1 != cotangent.shape[i])
    return cotangent.sum(axis=stretched, keepdims=True) if stretched else cotangent


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    y = np.tanh(x.data)
    return record(y, (x,), lambda c: (c * (1.0 - y * y),))


def sin(x: Tensor) -> Tensor:
    """Sine."""
    return record(np.sin(x.data), (x,), lambda c: (c * np.cos(x.data),))


def total(x: Tensor) -> Tensor:
    """Sum of all elements."""
    return record(x.data.sum(), (x,), lambda c: (np.broadcast_to(c, x.data.shape),))


def join(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate along an axis."""
    ends = np.cumsum([t.data.shape[axis] for t in tensors])[:-1]
    return record(
        np.concatenate([t.data for t in tensors], axis), tuple(tensors), lambda c: tuple(np.split(c, ends, axis))
    )


def noise(shape: Sequence[int]) -> Tensor:
    """Draw standard normal noise, float32."""
    return Tensor(generator.standard_normal(tuple(shape), np.float32))


def uniform(shape: Sequence[int]) -> Tensor:
    """Draw from [0, 1), float32."""
    return Tensor(generator.random(tuple(shape), np.float32))


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability ``rate``, and scale the others up."""
    keep = (uniform(x.data.shape).data >= rate).astype(x.data.dtype) / x.data.dtype.type(1.0 - rate)
    return record(x.data * keep, (x,), lambda c: (c * keep,))


class Module:
    """A model: parameters, buffers and modules are attributes; subclasses define ``forward``."""

    training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        for hook in list(call_hooks):
            hook(self)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs; for subclasses to define."""
        raise NotImplementedError

    def modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all inside it, with their paths."""
        yield prefix, self
        for key, value in vars(self).items():
            if isinstance(value, Module):
                yield from value.modules(f"{prefix}.{key}" if prefix else key)


class Dense(Module):
    """``x @ weight.T + bias``; ``weight`` has the shape ``(outputs, inputs)``."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        self.weight = Parameter(weight)
        if bias is not None:
            self.bias = Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of shape ``(batch, outputs)``."""
        a, b = x.data, self.weight.data
        y = record(a @ b.T, (x, self.weight), lambda c: (c @ b, c.T @ a))
        return y + self.bias if hasattr(self, "bias") else y


class Dropout(Module):
    """``dropout`` while training."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return dropout(x, self.rate) if self.training else x


class SGD:
    """Gradient descent with momentum."""

    def __init__(self, parameters: Sequence[Parameter], rate: float, momentum: float = 0.0) -> None:
        self.parameters, self.rate, self.momentum = list(parameters), rate, momentum
        self.velocity: dict[int, np.ndarray] = {}

    def step(self) -> None:
        """Move each parameter that holds a gradient."""
        for p in self.parameters:
            if p.grad is not None:
                velocity = self.momentum * self.velocity.get(id(p), 0.0) + p.grad.data
                self.velocity[id(p)] = velocity
                p.write(p.data - self.rate * velocity)

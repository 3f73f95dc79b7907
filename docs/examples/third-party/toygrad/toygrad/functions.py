"""Functions of tensors: some operations with a ``pull`` of their own, and others that are written in terms of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from toygrad.graph import Array
from toygrad.tensor import FLOATS, Tensor, record, use

_erf = np.vectorize(math.erf, otypes=[np.float64])


def pair(left: Any, right: Any) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors of one dtype; numbers and tensors of integers take that of the other one."""
    dtype = next((x.data.dtype for x in (left, right) if isinstance(x, Tensor) and x.data.dtype in FLOATS), None)
    made = [x if isinstance(x, Tensor) else Tensor(x, dtype=dtype) for x in (left, right)]
    if dtype is not None:
        made = [x if x.data.dtype in FLOATS else Tensor.of(x.data.astype(dtype)) for x in made]
    if dtype is not None and made[0].data.dtype != made[1].data.dtype:
        raise TypeError(f"operands are {made[0].data.dtype} and {made[1].data.dtype}; cast one of them")
    return made[0], made[1]


def fold(cotangent: Array, shape: tuple[int, ...]) -> Array:
    """Undo broadcasting: sum over what was stretched to the shape of the cotangent."""
    cotangent = cotangent.sum(axis=tuple(range(cotangent.ndim - len(shape))))
    stretched = tuple(axis for axis, length in enumerate(shape) if length == 1 != cotangent.shape[axis])
    return cotangent.sum(axis=stretched, keepdims=True) if stretched else cotangent


def add(left: Any, right: Any) -> Tensor:
    """Sum of two operands."""
    a, b = pair(left, right)
    return record(a.data + b.data, (a, b), lambda c: (fold(c, a.shape), fold(c, b.shape)))


def subtract(left: Any, right: Any) -> Tensor:
    """Difference of two operands."""
    a, b = pair(left, right)
    return record(a.data - b.data, (a, b), lambda c: (fold(c, a.shape), fold(-c, b.shape)))


def multiply(left: Any, right: Any) -> Tensor:
    """Product of two operands."""
    a, b = pair(left, right)
    x, y = a.data, b.data
    return record(x * y, (a, b), lambda c: (fold(c * y, x.shape), fold(c * x, y.shape)), reads=(a, b))


def divide(left: Any, right: Any) -> Tensor:
    """Quotient of two operands."""
    a, b = pair(left, right)
    x, y = a.data, b.data

    def pull(c: Array) -> tuple[Array, Array]:
        return fold(c / y, x.shape), fold(-c * x / (y * y), y.shape)

    return record(x / y, (a, b), pull, reads=(a, b))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product of matrices, or of stacks of them."""
    x, y = a.data, b.data
    if x.ndim < 2 or y.ndim < 2:
        raise ValueError(f"matmul takes matrices or stacks of them, not shapes {x.shape} and {y.shape}")

    def pull(c: Array) -> tuple[Array, Array]:
        return fold(c @ np.swapaxes(y, -1, -2), x.shape), fold(np.swapaxes(x, -1, -2) @ c, y.shape)

    return record(x @ y, (a, b), pull, reads=(a, b))


def compare(operation: Any, left: Any, right: Any) -> Tensor:
    """Compare two operands by a function of NumPy; the result leads nowhere."""
    a, b = pair(left, right)
    use(a, b)
    return Tensor.of(operation(a.data, b.data))


def _elementwise(x: Tensor, value: Array, slope: Any) -> Tensor:
    """Record a function of each element; ``slope(value)`` is its derivative and may read ``x`` too."""
    return record(value, (x,), lambda c: (c * slope(value),), reads=(x,))


def exp(x: Tensor) -> Tensor:
    """Exponential function."""
    return _elementwise(x, np.exp(x.data), lambda y: y)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    data = x.data
    return _elementwise(x, np.log(data), lambda y: 1 / data)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return _elementwise(x, np.sqrt(x.data), lambda y: x.data.dtype.type(0.5) / y)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return _elementwise(x, np.tanh(x.data), lambda y: 1 - y * y)


def sin(x: Tensor) -> Tensor:
    """Sine."""
    data = x.data
    return _elementwise(x, np.sin(data), lambda y: np.cos(data))


def cos(x: Tensor) -> Tensor:
    """Cosine."""
    data = x.data
    return _elementwise(x, np.cos(data), lambda y: -np.sin(data))


def sigmoid(x: Tensor) -> Tensor:
    """Logistic function, written so that no exponential overflows."""
    half = x.data.dtype.type(0.5)
    return _elementwise(x, half * np.tanh(half * x.data) + half, lambda y: y * (1 - y))


def erf(x: Tensor) -> Tensor:
    """Error function."""
    data, dtype = x.data, x.data.dtype
    value = _erf(data).astype(dtype) if data.size else data.copy()
    return _elementwise(x, value, lambda y: np.exp(-data * data) * dtype.type(2 / math.sqrt(math.pi)))


def absolute(x: Tensor) -> Tensor:
    """Absolute value; its derivative at 0 is 0."""
    data = x.data
    return _elementwise(x, np.abs(data), lambda y: np.sign(data))


def clip(x: Tensor, low: float = -math.inf, high: float = math.inf) -> Tensor:
    """Limit each element; the derivative is 1 strictly between the limits."""
    data, dtype = x.data, x.data.dtype
    value = np.clip(data, dtype.type(low), dtype.type(high))
    return _elementwise(x, value, lambda y: ((data > low) & (data < high)).astype(dtype))


def relu(x: Tensor) -> Tensor:
    """Limit from below at 0."""
    return clip(x, 0.0)


def relu6(x: Tensor) -> Tensor:
    """Limit to [0, 6]."""
    return clip(x, 0.0, 6.0)


def hardswish(x: Tensor) -> Tensor:
    """Gate by a line between two limits."""
    return x * relu6(x + 3.0) / 6.0


def gelu(x: Tensor) -> Tensor:
    """Gate by the normal distribution function."""
    return x * (erf(x * math.sqrt(0.5)) + 1.0) * 0.5


def maximum(left: Any, right: Any) -> Tensor:
    """Larger of two operands; where they are equal the gradient goes to the first."""
    a, b = pair(left, right)
    return where(compare(np.greater_equal, a, b), a, b)


def where(condition: Tensor, left: Any, right: Any) -> Tensor:
    """Elements of one tensor where the condition holds, else of another."""
    a, b = pair(left, right)
    chosen = condition.data.copy()

    def pull(c: Array) -> tuple[Array, Array]:
        zero = c.dtype.type(0)
        return fold(np.where(chosen, c, zero), a.shape), fold(np.where(chosen, zero, c), b.shape)

    return record(np.where(chosen, a.data, b.data), (a, b), pull)


def total(x: Tensor, axis: Any = None, keep: bool = False) -> Tensor:
    """Sum of all elements or along some axes, which may be kept with length one."""
    shape = x.shape

    def pull(c: Array) -> tuple[Array]:
        return (np.broadcast_to(c if axis is None or keep else np.expand_dims(c, axis), shape),)

    return record(x.data.sum(axis=axis, keepdims=keep), (x,), pull)


def mean(x: Tensor, axis: Any = None, keep: bool = False) -> Tensor:
    """Mean of all elements or along some axes."""
    summed = total(x, axis, keep)
    return summed / (x.data.size / max(summed.data.size, 1))


def largest(x: Tensor, axis: int | None = None, keep: bool = False) -> Tensor:
    """Largest element, of all or along an axis; the gradient goes to the first of equal ones."""
    if axis is None:
        return largest(reshape(x, (-1,)), 0)
    place = np.expand_dims(x.data.argmax(axis), axis)
    data, shape = x.data, x.shape
    value = np.take_along_axis(data, place, axis)

    def pull(c: Array) -> tuple[Array]:
        whole = np.zeros(shape, c.dtype)
        np.put_along_axis(whole, place, c if keep else np.expand_dims(c, axis), axis)
        return (whole,)

    return record(value if keep else value.squeeze(axis), (x,), pull)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the elements in another shape; a view where NumPy can."""
    before = x.shape
    data = x.data.reshape(tuple(shape))
    return record(data, (x,), lambda c: (c.reshape(before),), memory=_shared(x, data))


def transpose(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return a view with the axes in another order."""
    back = tuple(int(axis) for axis in np.argsort(axes))
    return record(x.data.transpose(tuple(axes)), (x,), lambda c: (c.transpose(back),), memory=x.memory)


def pick(x: Tensor, key: Any, left_out: int | None = None) -> Tensor:
    """Return ``x[key]``, a view where NumPy gives one; along axis 0, the row ``left_out`` gets no gradient."""
    parts = key if isinstance(key, tuple) else (key,)
    parts = tuple(part.data if isinstance(part, Tensor) else part for part in parts)
    parts = tuple(part.copy() if isinstance(part, np.ndarray) else part for part in parts)  # pull reads them later
    data, shape = x.data[parts], x.shape

    def pull(c: Array) -> tuple[Array]:
        whole = np.zeros(shape, c.dtype)
        np.add.at(whole, parts, c)
        if left_out is not None:
            whole[left_out] = 0
        return (whole,)

    return record(data, (x,), pull, memory=_shared(x, data))


def _shared(x: Tensor, data: Any) -> Any:
    return x.memory if isinstance(data, np.ndarray) and np.may_share_memory(data, x.data) else None


def join(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate along an axis."""
    ends = np.cumsum([x.shape[axis] for x in tensors])[:-1]
    data = np.concatenate([x.data for x in tensors], axis)
    return record(data, tuple(tensors), lambda c: tuple(np.split(c, ends, axis)))


def split(x: Tensor, parts: int, axis: int) -> list[Tensor]:
    """Cut into equal parts along an axis."""
    length, rest = divmod(x.shape[axis], parts)
    if rest:
        raise ValueError(f"{x.shape[axis]} elements can't be cut into {parts} equal parts")
    before = (slice(None),) * (axis % len(x.shape))
    return [pick(x, (*before, slice(i * length, (i + 1) * length))) for i in range(parts)]


def pad(x: Tensor, width: int) -> Tensor:
    """Put zeros around the last two axes."""
    if not width:
        return x
    inside = (..., slice(width, -width), slice(width, -width))
    widths = [(0, 0)] * (x.data.ndim - 2) + [(width, width)] * 2
    return record(np.pad(x.data, widths), (x,), lambda c: (c[inside],))


def cast(x: Tensor, dtype: str) -> Tensor:
    """Return the tensor in another dtype, itself if it has it."""
    source, target = x.data.dtype, np.dtype(dtype)
    if source == target:
        return x
    data = x.data.astype(target)
    if target not in FLOATS:
        use(x)
        return Tensor.of(data)
    return record(data, (x,), lambda c: (c.astype(source),))


def detach(x: Tensor) -> Tensor:
    """Return the values without their graph."""
    use(x)
    return Tensor(x.data)


def rounded(x: Tensor) -> Tensor:
    """Nearest whole numbers, without a graph."""
    use(x)
    return Tensor.of(np.round(x.data))


def sign(x: Tensor) -> Tensor:
    """Sign of each element, without a graph."""
    use(x)
    return Tensor.of(np.sign(x.data))


def place_of_largest(x: Tensor) -> Tensor:
    """Index of the largest of all elements."""
    use(x)
    return Tensor.of(x.data.argmax())


def norm(x: Tensor) -> Tensor:
    """Euclidean norm of all elements; its derivative at 0 is no number."""
    return sqrt(total(x * x))


def softmax(x: Tensor, axis: int) -> Tensor:
    """Exponentials along an axis, divided by their sum."""
    powers = exp(x - detach(largest(x, axis, keep=True)))
    return powers / total(powers, axis, keep=True)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the batch of minus the logarithm of the softmax at the label."""
    shifted = logits - detach(largest(logits, 1, keep=True))
    surprise = log(total(exp(shifted), 1)) - pick(shifted, (np.arange(logits.shape[0]), labels))
    return mean(surprise)


def alias(x: Tensor) -> Tensor:
    """Return a new tensor of the same memory, connected to the graph of the first."""
    return record(x.data, (x,), lambda c: (c,), memory=x.memory)

"""Tensors: an array, the version of its memory, and the node that made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from unigrad_numpy.graph import Node, VersionCounter, log_storage, state

__all__ = ["Parameter", "Tensor", "wrap"]

DIFFERENTIABLE = (np.dtype(np.float32), np.dtype(np.float64))


class Tensor:
    """An array that operations record.

    Parameters
    ----------
    data
        Array, tensor, number or nested lists; always copied. Python floats become float32, arrays keep their dtype.
    requires_grad
        Whether this leaf takes gradients; float32 and float64 only.
    dtype
        Dtype to convert to.

    Examples
    --------
    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().item()
    5.0
    """

    __slots__ = ("__weakref__", "_array", "_counter", "_requires_grad", "grad", "node")

    _array: np.ndarray[Any, Any]
    _counter: VersionCounter
    _requires_grad: bool
    grad: Tensor | None
    node: Node | None

    # ndarray's operators give way, so that ``array + tensor`` is a tensor.
    __array_ufunc__ = None

    def __init__(self, data: Any, requires_grad: bool = False, dtype: Any = None) -> None:
        if isinstance(data, Tensor):
            data = data._array
        array = np.array(data, dtype=dtype, order="C")
        if dtype is None and array.dtype == np.float64 and not isinstance(data, np.ndarray | np.generic):
            array = array.astype(np.float32)
        self._array = array
        self._counter = VersionCounter()
        self._requires_grad = False
        self.node = None
        self.grad = None
        self.requires_grad = requires_grad
        if state.storages:
            log_storage(array)

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """The values as a read-only view; write with :meth:`assign` or ``tensor[...] = values``."""
        view = self._array.view()
        view.flags.writeable = False
        return view

    @property
    def version(self) -> int:
        """How often the memory of the tensor was written in place, through it or any view."""
        return self._counter.value

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor is a leaf that takes gradients or depends on one."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self._array.dtype not in DIFFERENTIABLE:
            raise TypeError(f"only float32 and float64 tensors can require a gradient, not {self._array.dtype}")
        if self.node is not None and not value:
            raise RuntimeError(
                f"a tensor made by operation {self.node.name!r} always requires a gradient; use detach()"
            )
        self._requires_grad = bool(value)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made the tensor."""
        return self.node is None

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._array.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._array.size

    @property
    def T(self) -> Tensor:  # as NumPy writes it
        """The tensor with its axes in reverse order."""
        return ops.transpose(self)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a C-contiguous copy of the values."""
        return np.array(self._array, order="C")

    def item(self) -> Any:
        """Return the value of a tensor of one element as a Python number."""
        if self._array.size != 1:
            raise ValueError(f"item() needs a tensor of one element; this one has shape {self.shape}")
        return self._array.item()

    def detach(self) -> Tensor:
        """Return a tensor of the same memory without a graph."""
        return ops.stop_gradient(self)

    def assign(self, values: Any) -> None:
        """Write new values in place; a graph that saved the old ones notices.

        Parameters
        ----------
        values
            Array or tensor of the same shape and dtype, or a Python number.
        """
        array = values._array if isinstance(values, Tensor) else values
        if isinstance(array, np.ndarray):
            if array.shape != self.shape:
                raise ValueError(f"cannot assign values of shape {array.shape} to a tensor of shape {self.shape}")
            if array.dtype != self.dtype:
                raise TypeError(f"cannot assign values of dtype {array.dtype} to a tensor of dtype {self.dtype}")
        elif not isinstance(array, int | float | np.generic):
            raise TypeError(f"assign needs an array, a tensor or a number, not {type(array).__name__}")
        self[...] = values

    def __setitem__(self, key: Any, values: Any) -> None:
        if self.node is not None:
            raise RuntimeError(
                f"this tensor was made by the recorded operation {self.node.name!r}; writing into it in place would "
                "cut its graph. Use where(), or write into detach() of a copy"
            )
        if isinstance(values, Tensor):
            if values.requires_grad and state.recording:
                raise RuntimeError("values that need a gradient cannot be written in place; use where() or concat()")
            values = values._array
        self._array[ops.plain_key(key)] = values
        self._counter.value += 1

    def add_(self, values: Any) -> None:
        """Add to the values in place; a graph that saved the old ones notices."""
        self[...] = self._array + getattr(values, "_array", values)

    def mul_(self, values: Any) -> None:
        """Multiply the values in place; a graph that saved the old ones notices."""
        self[...] = self._array * getattr(values, "_array", values)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.node is not None:
            raise RuntimeError("only leaf tensors can be deep-copied; use detach() first")
        copy = type(self).__new__(type(self))
        Tensor.__init__(copy, self._array, requires_grad=self._requires_grad)
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = Tensor(self.grad)
        return copy

    def __reduce__(self) -> Any:
        raise TypeError("tensors cannot be pickled; save numpy() instead")

    def __repr__(self) -> str:
        end = (
            f", made by {self.node.name}" if self.node is not None else ", requires_grad" if self.requires_grad else ""
        )
        values = np.array2string(self._array, separator=", ", threshold=20)
        return f"{type(self).__name__}({values}, {self.dtype}{end})"

    def __len__(self) -> int:
        if self._array.ndim == 0:
            raise TypeError("a tensor without axes has no length")
        return len(self._array)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self.item().__index__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self.requires_grad:
            raise TypeError("this tensor needs a gradient; convert it with detach().numpy() or .numpy()")
        return np.array(self._array, dtype=dtype)

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Tensor:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return ops.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return ops.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return ops.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return ops.mul(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return ops.div(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return ops.div(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return ops.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return ops.pow(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return ops.matmul(other, self)

    def __neg__(self) -> Tensor:
        return ops.neg(self)

    def __abs__(self) -> Tensor:
        return ops.abs(self)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]  # elementwise, as NumPy's
        return ops.equal(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]  # elementwise, as NumPy's
        return ops.not_equal(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return ops.less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return ops.less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return ops.greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return ops.greater_equal(self, other)

    def __getitem__(self, key: Any) -> Tensor:
        return ops.getitem(self, key)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Sum over ``axis``; see :func:`unigrad_numpy.ops.sum`."""
        return ops.sum(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Mean over ``axis``; see :func:`unigrad_numpy.ops.mean`."""
        return ops.mean(self, axis, keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Largest element over ``axis``; see :func:`unigrad_numpy.ops.max`."""
        return ops.max(self, axis, keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Smallest element over ``axis``; see :func:`unigrad_numpy.ops.min`."""
        return ops.min(self, axis, keepdims)

    def argmax(self, axis: int | None = None) -> Tensor:
        """Index of the largest element; see :func:`unigrad_numpy.ops.argmax`."""
        return ops.argmax(self, axis)

    def reshape(self, *shape: Any) -> Tensor:
        """Return the tensor in another shape; see :func:`unigrad_numpy.ops.reshape`."""
        return ops.reshape(self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)

    def transpose(self, *axes: Any) -> Tensor:
        """Reorder axes; see :func:`unigrad_numpy.ops.transpose`."""
        return ops.transpose(self, (axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes) or None)

    def swapaxes(self, first: int, second: int) -> Tensor:
        """Exchange two axes."""
        return ops.swapaxes(self, first, second)

    def astype(self, dtype: Any) -> Tensor:
        """Return the tensor in another dtype; see :func:`unigrad_numpy.ops.cast`."""
        return ops.cast(self, dtype)


class Parameter(Tensor):
    """A leaf tensor that a layer trains; assigning it to an attribute of a module registers it."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True, dtype: Any = None) -> None:
        super().__init__(data, requires_grad=requires_grad, dtype=dtype)
        for log in state.created:
            log.append(self)


def wrap(array: np.ndarray[Any, Any], counter: VersionCounter | None = None) -> Tensor:
    """Return a tensor of this very array, not copied; ``counter`` is that of the tensor it is a view of."""
    tensor = Tensor.__new__(Tensor)
    tensor._array = array
    tensor._counter = VersionCounter() if counter is None else counter
    tensor._requires_grad = False
    tensor.node = None
    tensor.grad = None
    # A view is of a storage that was logged when it was made, or is older than the log.
    if counter is None and state.storages:
        log_storage(array)
    return tensor


from unigrad_numpy import ops  # noqa: E402  # operations need the class above, its methods need the operations

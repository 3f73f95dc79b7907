"""Tensors, and how an operation makes one."""

from __future__ import annotations

from typing import Any

import numpy as np

from toygrad.graph import Memory, Node, Pull, below, moment, pullback, release, state

FLOATS = (np.float32, np.float64)


class Tensor:
    """An array, and where it comes from.

    Parameters
    ----------
    data
        Array, number or nested lists; copied.
    trainable
        Whether it is a leaf that takes gradients.
    dtype
        Dtype to convert to.
    """

    __array_ufunc__ = None  # an array of NumPy leaves operators to the tensor beside it

    def __init__(self, data: Any, trainable: bool = False, dtype: Any = None) -> None:
        self._set(np.array(data, dtype=dtype, order="C"), Memory())
        if trainable and self.data.dtype not in FLOATS:
            raise TypeError(f"only float32 and float64 tensors can be trainable, not {self.data.dtype}")
        self.trainable = trainable

    def _set(self, data: Any, memory: Memory) -> None:
        self.data = data
        self.memory = memory
        self.trainable = False
        self.node: Node | None = None
        self.grad: Tensor | None = None
        self.serial = moment()

    @classmethod
    def of(cls, data: Any, memory: Memory | None = None) -> Tensor:
        """Make a tensor of this very array, whose memory it may share with another tensor."""
        made = Tensor.__new__(Tensor)
        made._set(np.asarray(data), memory or Memory())
        return made

    @property
    def tracked(self) -> bool:
        """Whether it takes a gradient, or leads to something that does."""
        return self.trainable or self.node is not None

    @property
    def source(self) -> Any:
        """What a node refers to for this input: the node that made it, the leaf itself, or None."""
        return self.node or (self if self.trainable else None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis."""
        return tuple(self.data.shape)

    def write(self, data: Any) -> None:
        """Overwrite the values of a leaf; graphs that read them notice."""
        if self.node is not None:
            raise RuntimeError("this tensor is the result of a recorded operation, which may still read it")
        self.data[...] = data
        self.memory.writes += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.node is not None:
            raise RuntimeError("only leaves can be copied; this tensor is the result of a recorded operation")
        twin: Tensor = object.__new__(type(self))
        memo[id(self)] = twin
        twin._set(np.array(self.data, order="C"), Memory())
        twin.trainable = self.trainable
        twin.grad = Tensor(self.grad.data) if self.grad is not None else None
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.data!r}{', trainable' if self.trainable else ''})"

    def __float__(self) -> float:
        return float(self.data.item())

    def __add__(self, other: Any) -> Tensor:
        return functions.add(self, other)

    def __mul__(self, other: Any) -> Tensor:
        return functions.multiply(self, other)

    def __sub__(self, other: Any) -> Tensor:
        return functions.subtract(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return functions.subtract(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return functions.divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return functions.divide(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return functions.matmul(self, other)

    def __neg__(self) -> Tensor:
        return functions.multiply(self, -1.0)

    def __getitem__(self, key: Any) -> Tensor:
        return functions.pick(self, key)

    def __gt__(self, other: Any) -> Tensor:
        return functions.compare(np.greater, self, other)

    def __ge__(self, other: Any) -> Tensor:
        return functions.compare(np.greater_equal, self, other)

    def __lt__(self, other: Any) -> Tensor:
        return functions.compare(np.less, self, other)

    def __le__(self, other: Any) -> Tensor:
        return functions.compare(np.less_equal, self, other)

    __radd__ = __add__
    __rmul__ = __mul__


class Parameter(Tensor):
    """A leaf that a module trains."""

    def __init__(self, data: Any, dtype: Any = None) -> None:
        super().__init__(data, trainable=True, dtype=dtype)


class Buffer(Tensor):
    """A leaf that a module keeps without training it."""


def use(*tensors: Tensor) -> None:
    """Tell the hooks that an operation reads these tensors."""
    if state.recording:
        for tensor in tensors:
            if tensor.trainable and tensor.node is None:
                for hook in state.use_hooks:
                    hook(tensor)


def record(
    data: Any, inputs: tuple[Tensor, ...], pull: Pull, reads: tuple[Tensor, ...] = (), memory: Memory | None = None
) -> Tensor:
    """Make the result of an operation, with a node if one of the inputs is tracked.

    Parameters
    ----------
    data
        The result; not copied.
    inputs
        Tensors that a gradient can flow to.
    pull
        See :class:`Node`. It may return its argument, views of it and new arrays, never an array that a tensor holds.
    reads
        Inputs whose values ``pull`` reads; it may always read the result.
    memory
        Memory of the input of which the result is a view.
    """
    result = Tensor.of(data, memory)
    use(*inputs)
    if state.recording and any(x.tracked for x in inputs):
        memories = [x.memory for x in reads] + [result.memory]
        node = Node(result.shape, inputs, pull, tuple((m, m.writes) for m in memories))
        result.node = node
        for hook in state.node_hooks:
            hook(node, inputs)
    return result


def backward(loss: Tensor) -> None:
    """Add the gradients of a loss to the ``grad`` of every leaf that it depends on, and release its graph."""
    nodes, leaves = below([loss])
    for leaf, gradient in zip(leaves, pullback([loss], [None], leaves, nodes), strict=True):
        if gradient is not None:
            leaf.grad = Tensor(gradient if leaf.grad is None else leaf.grad.data + gradient)
    release(nodes)


from toygrad import functions  # noqa: E402  # functions make tensors, whose operators are functions
